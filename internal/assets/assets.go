// Package assets carries the C libraries inside the lgpu binary, so that an install is one file, and writes them out so
// that an upgrade never touches a library in use.
//
//	libs, err := assets.Install()
//	// LD_PRELOAD=libs.Interposer, LD_LIBRARY_PATH=libs.SimDir
package assets

import (
	"archive/zip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/lgpu/lgpu/internal/wholefile"
)

// The folder is embedded whole so that a fresh clone compiles, where it has no archive yet.
//
//go:embed archive
var embedded embed.FS

// ErrNotBuilt: this binary was built by "go build" alone, without the C libraries.
var ErrNotBuilt = errors.New("this lgpu carries no C libraries; build it with: make build")

// files are the libraries that every archive has, relative to the folder they are installed in. The software GPU's have
// a folder of their own, since it goes in LD_LIBRARY_PATH.
var files = []string{"liblgpu.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"}

// Libraries says where the libraries are.
type Libraries struct {
	Dir        string // the folder of all
	Interposer string // liblgpu.so
	SimDir     string // the folder with the software GPU's libcuda.so.1 and libnvidia-ml.so.1
	// Lshmem is the folder with liblshmem.so and lshmem.py, which go in LD_LIBRARY_PATH and PYTHONPATH, and the headers in
	// include; empty if this binary was built without them.
	Lshmem string
}

// Install makes sure that the libraries lie in $LGPU_LIBDIR, or else in a folder named for their contents under
// /run/lgpu/lib (root) or the user's cache folder, and returns where. A file that is there already is used if its
// contents are right and replaced by a new file if not; it is never written to. Files that were right and have not
// changed since are not read again (stamp.go). Any number of processes may install at once.
func Install() (Libraries, error) {
	z, err := open(embedded)
	if err != nil {
		return Libraries{}, err
	}
	return install(z, time.Now())
}

// open opens the archive in source.
func open(source fs.FS) (*zip.Reader, error) {
	data, err := source.Open("archive/libraries.zip")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBuilt
	}
	if err != nil {
		return nil, fmt.Errorf("read the embedded libraries: %w", err)
	}
	at, ok := data.(io.ReaderAt) // embedded files are never closed and never copied
	st, err := data.Stat()
	if err != nil || !ok {
		return nil, fmt.Errorf("read the embedded libraries: %w", errors.Join(err, errors.ErrUnsupported))
	}
	z, err := zip.NewReader(at, st.Size())
	if err != nil {
		return nil, fmt.Errorf("read the embedded libraries: %w", err)
	}
	z.RegisterDecompressor(method, zstd.ZipDecompressor())
	return z, nil
}

// has says whether an archive has that file.
func has(z *zip.Reader, name string) bool {
	for _, f := range z.File {
		if f.Name == name {
			return true
		}
	}
	return false
}

// Contained is the folder that contained programs have their libraries in (internal/contain).
func (l Libraries) Contained() string { return containedDir(l.Dir) }

func containedDir(dir string) string { return filepath.Join(dir, "contained") }

// contained says whether this process is a contained program: a copy of the interposer is mounted over it.
func contained(dir string) bool {
	own, err := os.Stat(filepath.Join(dir, files[0]))
	if err != nil {
		return false
	}
	copied, err := os.Stat(filepath.Join(containedDir(dir), files[0]))
	return err == nil && os.SameFile(own, copied)
}

func install(z *zip.Reader, now time.Time) (Libraries, error) {
	for _, name := range files {
		if !has(z, name) {
			return Libraries{}, fmt.Errorf("%w (%s is missing)", ErrNotBuilt, name)
		}
	}
	sum := sha256.New()
	for _, f := range z.File {
		fmt.Fprintf(sum, "%s %s\n", f.Name, f.Comment)
	}
	dir, err := folder(hex.EncodeToString(sum.Sum(nil)[:8]))
	if err != nil {
		return Libraries{}, fmt.Errorf("find a folder for the libraries: %w", err)
	}
	// LD_PRELOAD separates its entries by spaces and colons and knows no escape.
	if strings.ContainsAny(dir, " :\t\n") {
		return Libraries{}, fmt.Errorf("library folder %q: the dynamic loader cannot name a folder with a space or colon", dir)
	}
	if err := placeAll(z, dir, now); err != nil {
		return Libraries{}, err
	}
	libs := Libraries{Dir: dir, Interposer: filepath.Join(dir, files[0]), SimDir: filepath.Join(dir, "sim")}
	if has(z, shmemLibrary) {
		libs.Lshmem = filepath.Join(dir, shmemDir)
	}
	return libs, nil
}

// folder returns the folder to install to.
func folder(version string) (string, error) {
	if dir := os.Getenv("LGPU_LIBDIR"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Getuid() == 0 {
		return filepath.Join("/run/lgpu/lib", version), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; LGPU_LIBDIR can name one", err)
	}
	return filepath.Join(cache, "lgpu", version), nil
}

// place writes a file of the archive to path, unless path has the same contents already.
func place(path string, f *zip.File) error {
	if sum, err := sumOf(path); err == nil && sum == f.Comment {
		return nil
	}
	// Readable for all: a tenant may change its user.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	contents, err := f.Open()
	if err != nil {
		return err
	}
	defer contents.Close()
	mode := fs.FileMode(0o644)
	if strings.Contains(filepath.Base(path), ".so") {
		mode = 0o755
	}
	// A stamp may vouch for the file after a crash of the machine.
	return wholefile.WriteDurably(path, contents, mode)
}

// sumOf is the checksum of the file at path, as Pack writes it into the archive.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
