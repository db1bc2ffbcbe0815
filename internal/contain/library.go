package contain

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Library writes a stamped copy of the interposer for containers, where they have it under LibraryDir, and returns its
// folder: one below dir that is named for what is in it. A folder that is there is as it was written. stamp is what
// programs need to find their lgpu, beside where the socket and the driver are.
func Library(interposer, dir string, values map[string]string) (string, error) {
	all := map[string]string{"LGPU_SOCKET": filepath.Join(SocketDir, SocketName)}
	for i, soname := range sonames {
		all[variables[i]] = filepath.Join(DriverDir, soname)
	}
	maps.Copy(all, values)
	library, err := os.ReadFile(interposer)
	if err != nil {
		return "", fmt.Errorf("read the interposer: %w", err)
	}
	if library, err = stamp(library, all); err != nil {
		return "", fmt.Errorf("stamp %s: %w", interposer, err)
	}
	sum := sha256.Sum256(library)
	folder := filepath.Join(dir, hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the containers' libraries: %w", err)
	}
	temp, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return "", fmt.Errorf("make the folder of a container's library: %w", err)
	}
	own := filepath.Join(temp, "liblgpu.so")
	err = errors.Join(os.WriteFile(own, library, 0o755), os.Chmod(own, 0o755), os.Chmod(temp, 0o755))
	for _, soname := range sonames {
		err = errors.Join(err, os.Symlink("liblgpu.so", filepath.Join(temp, soname)))
	}
	if err == nil {
		err = os.Rename(temp, folder)
	}
	if err != nil {
		os.RemoveAll(temp) // what is left of it harms nobody
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return "", fmt.Errorf("write a container's library: %w", err)
		}
	}
	return folder, nil
}

// driverParts are the libraries of the driver that CUDA programs load, directly or through one of them; each has the
// driver's version at the end of its name. Those for graphics and video are not among them.
var driverParts = []string{
	"libcuda", "libcudadebugger", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-nvvm70",
	"libnvidia-gpucomp", "libnvidia-opencl", "libnvidia-cfg", "libnvidia-allocator", "libnvidia-pkcs11",
	"libnvidia-pkcs11-openssl3", "libnvidia-sandboxutils",
}

// Driver returns the libraries of this machine's driver, by the names that programs load them by. interposer tells for
// which kind of program.
func Driver(interposer string) (map[string]string, error) {
	kind, err := kindOf(interposer)
	if err != nil {
		return nil, err
	}
	s := search{kind: kind, open: os.Open}
	if _, err := s.readCache(cachePath); err != nil {
		return nil, fmt.Errorf("find the driver's libraries: %w", err)
	}
	found := map[string]string{}
	for _, soname := range sonames {
		paths, _ := s.find(soname)
		if len(paths) == 0 {
			return nil, fmt.Errorf("find the driver's libraries: %s: %w", soname, fs.ErrNotExist)
		}
		if found[soname], err = filepath.EvalSymlinks(paths[0]); err != nil {
			return nil, fmt.Errorf("find the driver's libraries: %w", err)
		}
	}
	folder, name := filepath.Split(found[sonames[0]])
	version, ok := strings.CutPrefix(name, "libcuda.so.")
	if !ok || !strings.Contains(version, ".") {
		return found, nil // such as a software GPU's
	}
	for _, part := range driverParts {
		path := filepath.Join(folder, part+".so."+version)
		soname, err := sonameOf(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if found[soname] == "" {
			found[soname] = path
		}
	}
	return found, nil
}

// sonameOf returns what a library says that it is called.
func sonameOf(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", path, err)
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 || strings.ContainsRune(names[0], '/') || names[0] == "" {
		return "", fmt.Errorf("look at %s: it does not say what it is called: %w", path, errors.Join(err, fs.ErrInvalid))
	}
	return names[0], nil
}

// Sonames are the names of the libraries that the interposer takes the place of.
func Sonames() []string { return slices.Clone(sonames) }
