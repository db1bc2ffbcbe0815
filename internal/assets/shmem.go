package assets

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// shmemDir is the folder of lshmem among the libraries: liblshmem.so, lshmem.py and include.
const shmemDir = "lshmem"

// shmemFiles lists the files of lshmem, relative to root. ErrNotBuilt if there are none.
func shmemFiles(source fs.FS, root string) ([]string, error) {
	var names []string
	err := fs.WalkDir(source, path.Join(root, shmemDir), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(name, root+"/"))
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(names, shmemDir+"/liblshmem.so") {
		return nil, fmt.Errorf("%w (liblshmem.so is missing)", ErrNotBuilt)
	}
	return names, err
}

// InstallShmem writes lshmem to dir as a developer wants it: lib/liblshmem.so, include/*, python/lshmem.py. It returns the files
// it made sure of. Files in use are replaced by new ones, never written to.
func InstallShmem(dir string) ([]string, error) { return installShmem(embedded, "lib", dir) }

func installShmem(source fs.FS, root, dir string) ([]string, error) {
	names, err := shmemFiles(source, root)
	if err != nil {
		return nil, err
	}
	var written []string
	for _, name := range names {
		data, err := fs.ReadFile(source, path.Join(root, name))
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, filepath.FromSlash(developerPath(strings.TrimPrefix(name, shmemDir+"/"))))
		if err := place(to, data); err != nil {
			return nil, fmt.Errorf("install %s: %w", to, err)
		}
		written = append(written, to)
	}
	return written, nil
}

// developerPath is where in a prefix a file belongs.
func developerPath(name string) string {
	switch path.Ext(name) {
	case ".so":
		return "lib/" + name
	case ".py":
		return "python/" + name
	}
	return name
}
