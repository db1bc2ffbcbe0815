package figure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lgpu/lgpu/internal/wholefile"
)

// ErrForeign is wrapped where a file that is not a chart would be replaced.
var ErrForeign = errors.New("it is there already, and is not a chart of lgpu's")

// mark tells a chart from other files. It is in the first line.
const mark = "<!-- a chart by lgpu sim igpu -->"

// Save writes the chart to a file, as a whole or not at all. It replaces an older chart or an empty file, and no other; what
// is not a plain file, such as a pipe, is written to.
func (c Chart) Save(path string) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, []byte(c.SVG()), 0o644)
	} else if err == nil && info.Size() > 0 {
		if ours, err := marked(path); err != nil {
			return err
		} else if !ours {
			return fmt.Errorf("%s: %w", path, ErrForeign)
		}
	}
	return wholefile.Write(path, strings.NewReader(c.SVG()), 0o644)
}

// marked reports whether a file is a chart.
func marked(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	start, err := io.ReadAll(io.LimitReader(f, 512))
	return bytes.HasPrefix(start, []byte("<svg ")) && bytes.Contains(start, []byte(mark)), err
}
