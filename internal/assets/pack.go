package assets

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// method is how files in an archive are compressed: by Zstandard, which unpacks several times as fast as zip's own.
const method = zstd.ZipMethodWinZip

// Pack writes the archive that Install unpacks: a zip file with those files of tree, each with its SHA-256 sum as its
// comment. Equal files become equal archives.
func Pack(w io.Writer, tree fs.FS, names []string) error {
	z := zip.NewWriter(w)
	best := zstd.ZipCompressor(zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	z.RegisterCompressor(method, best)
	for _, name := range names {
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		f, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method, Comment: hex.EncodeToString(sum[:])})
		if err == nil {
			_, err = f.Write(data)
		}
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	return z.Close()
}
