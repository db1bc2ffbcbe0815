package assets

import (
	"archive/zip"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// shmemDir is the folder of lshmem among the libraries: liblshmem.so, lshmem.py and include. An archive with
// shmemLibrary has all of it.
const (
	shmemDir     = "lshmem"
	shmemLibrary = shmemDir + "/liblshmem.so"
)

// InstallShmem writes lshmem to dir as a developer wants it: lib/liblshmem.so, include/*, python/lshmem.py. It returns
// the files it made sure of. Files in use are replaced by new ones, never written to.
func InstallShmem(dir string) ([]string, error) {
	z, err := open(embedded)
	if err != nil {
		return nil, err
	}
	return installShmem(z, dir)
}

func installShmem(z *zip.Reader, dir string) ([]string, error) {
	if !has(z, shmemLibrary) {
		return nil, fmt.Errorf("%w (liblshmem.so is missing)", ErrNotBuilt)
	}
	var written []string
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, shmemDir+"/")
		if !ok {
			continue
		}
		to := filepath.Join(dir, filepath.FromSlash(developerPath(name)))
		if err := place(to, f); err != nil {
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
