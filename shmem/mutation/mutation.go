// Package mutation makes copies of the device header with defects, for tests that must find these. The headers that are
// installed have no trace of them: a defect is a patch, in defects.patch, which must match the header exactly.
package mutation

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Macro is the macro that chooses a defect in a copy: a program that is compiled with it defined as a defect's number,
// or as a variable that has the number, has that defect. It must be defined; 0 is no defect.
const Macro = "LSHMEM_MUTATION"

//go:embed defects.patch
var defects string

// change is what a defect changes in one header.
type change struct {
	defect    int
	old, want string // whole lines
}

// parse reads blocks as defects.patch describes them.
func parse(text string) ([]change, error) {
	var changes []change
	for i, line := range strings.Split(text, "\n") {
		var p *change
		if len(changes) > 0 {
			p = &changes[len(changes)-1]
		}
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == 'M':
			n, err := strconv.Atoi(line[1:])
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is not a defect's number", i+1, line)
			}
			changes = append(changes, change{defect: n})
			continue
		case p == nil:
			return nil, fmt.Errorf("line %d: no defect is named before it", i+1)
		}
		text := line[1:] + "\n"
		switch line[0] {
		case '-':
			p.old += text
		case '+':
			p.want += strings.ReplaceAll(text, "DEFECT", fmt.Sprintf("(%s == %d)", Macro, p.defect))
		case ' ':
			p.old += text
			p.want += text
		default:
			return nil, fmt.Errorf("line %d begins with %q: want M, -, + or a space", i+1, line[0])
		}
	}
	return changes, nil
}

// Numbers lists the defects that the copies have.
func Numbers() ([]int, error) {
	changes, err := parse(defects)
	var numbers []int
	for _, p := range changes {
		numbers = append(numbers, p.defect)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), err
}

// Copy writes a copy of the headers in a folder, with all defects as switches, to another folder, which it makes. Every
// change must apply to one header, once.
func Copy(from, to string) error {
	changes, err := parse(defects)
	if err != nil {
		return fmt.Errorf("defects.patch: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(from, "*.*h"))
	if err != nil {
		return err
	}
	headers := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		headers[filepath.Base(name)] = string(text)
	}
	for _, p := range changes {
		if err := p.apply(headers); err != nil {
			return fmt.Errorf("defects.patch, M%d: %w", p.defect, err)
		}
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for name, text := range headers {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apply makes the change in the one header that has the lines.
func (p change) apply(headers map[string]string) error {
	found, in := 0, ""
	for name, text := range headers {
		text = "\n" + text
		for i := range text {
			if strings.HasPrefix(text[i:], "\n"+p.old) {
				found, in = found+1, name
			}
		}
	}
	if p.old == "" || found != 1 {
		return fmt.Errorf("these lines stand %d times in the headers, not once:\n%s", found, p.old)
	}
	headers[in] = strings.Replace("\n"+headers[in], "\n"+p.old, "\n"+p.want, 1)[1:]
	return nil
}
