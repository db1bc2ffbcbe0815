// Package assets carries the C libraries inside the lgpu binary, so that an install is one file, and writes them out so
// that an upgrade never touches a library in use.
//
//	libs, err := assets.Install()
//	// LD_PRELOAD=libs.Interposer, LD_LIBRARY_PATH=libs.SimDir
package assets

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The folder is embedded whole so that a fresh clone, where it has no library yet, compiles.
//
//go:embed lib
var embedded embed.FS

// ErrNotBuilt: this binary was built by "go build" alone, without the C libraries.
var ErrNotBuilt = errors.New("this lgpu carries no C libraries; build it with: make build")

// files are the libraries, relative to the folder they are installed in. The software GPU's have a folder of their own,
// since it goes in LD_LIBRARY_PATH.
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
// contents are right and replaced by a new file if not; it is never written to. Any number of processes may install at
// once.
func Install() (Libraries, error) {
	return install(embedded, "lib")
}

func install(source fs.FS, root string) (Libraries, error) {
	shmem, err := shmemFiles(source, root)
	if err != nil && !errors.Is(err, ErrNotBuilt) {
		return Libraries{}, err
	}
	files := slices.Concat(files, shmem)
	contents := make([][]byte, len(files))
	sum := sha256.New()
	for i, name := range files {
		data, err := fs.ReadFile(source, path.Join(root, name))
		if err != nil {
			return Libraries{}, fmt.Errorf("%w (%s is missing)", ErrNotBuilt, name)
		}
		contents[i] = data
		fmt.Fprintf(sum, "%s %d\n", name, len(data))
		sum.Write(data)
	}
	dir, err := folder(hex.EncodeToString(sum.Sum(nil)[:8]))
	if err != nil {
		return Libraries{}, fmt.Errorf("find a folder for the libraries: %w", err)
	}
	// LD_PRELOAD separates its entries by spaces and colons and knows no escape.
	if strings.ContainsAny(dir, " :\t\n") {
		return Libraries{}, fmt.Errorf("library folder %q: the dynamic loader cannot name a folder with a space or colon", dir)
	}
	for i, name := range files {
		if err := place(filepath.Join(dir, name), contents[i]); err != nil {
			return Libraries{}, fmt.Errorf("install %s: %w", name, err)
		}
	}
	libs := Libraries{Dir: dir, Interposer: filepath.Join(dir, files[0]), SimDir: filepath.Join(dir, "sim")}
	if len(shmem) > 0 {
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

// place makes the file at path hold data.
func place(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	// Readable for all: a tenant may change its user.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	mode := fs.FileMode(0o644)
	if strings.Contains(filepath.Base(path), ".so") {
		mode = 0o755
	}
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		os.Remove(temp.Name())
	}
	return err
}
