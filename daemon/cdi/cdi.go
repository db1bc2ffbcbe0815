// Package cdi writes the specifications by which container runtimes give lgpus to containers (Container Device Interface;
// the format is that of tags.cncf.io/container-device-interface v1.1.1, SPEC.md): one file for each lgpu.
//
//	f := cdi.Folder{Dir: "/var/run/cdi", Tag: "lgpu"}
//	changed, err := f.Write(id, cdi.Spec("team", edits))
//	err = f.Keep(ids) // after a start: removes those of lgpus that are gone
//
// A file is replaced as a whole, and never written to. Methods may be called by several goroutines, but not at once for
// the same lgpu.
package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/internal/wholefile"
)

// Kind is that of the devices: podman run --device lgpu.io/lgpu=NAME.
const Kind = "lgpu.io/lgpu"

// version is the oldest of the format that has all that is used here, as runtimes refuse newer ones than they know: 0.5.0
// has names that begin with a digit.
const version = "0.5.0"

// StaticDir and DynamicDir are where runtimes look for specifications: those that an administrator writes, and those of
// programs.
const (
	StaticDir  = "/etc/cdi"
	DynamicDir = "/var/run/cdi"
)

// File is a file of the format, as far as lgpu writes it.
type File struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
}

// Device is what a runtime can be asked for by its name.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are what a runtime does to a container that has the device.
type Edits struct {
	Nodes  []Node  `json:"deviceNodes,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	Hooks  []Hook  `json:"hooks,omitempty"`
}

// Node is a device file, which the container has under the same path.
type Node struct {
	Path string `json:"path"`
}

// Mount is a file or folder of the machine that the container has.
type Mount struct {
	Host      string   `json:"hostPath"`
	Container string   `json:"containerPath"`
	Type      string   `json:"type,omitempty"` // empty for what is on the machine
	Options   []string `json:"options,omitempty"`
}

// Hook is a program that the runtime runs.
type Hook struct {
	Name string   `json:"hookName"` // when it runs
	Path string   `json:"path"`
	Args []string `json:"args"` // from the program's own name on
}

// CreateContainer is when a Hook runs that needs the container's file systems mounted and its program not begun.
const CreateContainer = "createContainer"

// ReadOnly returns the mount of a file or folder that the container only reads.
func ReadOnly(host, container string) Mount {
	return Mount{Host: host, Container: container, Options: []string{"ro", "nosuid", "nodev", "rbind"}}
}

// Name is what the lgpu at a path of the tree is called: a colon takes the place of each slash, which the format does not
// have. An error says why runtimes would not understand the name.
func Name(path string) (string, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", ":")
	if name == "" || strings.ContainsAny(name[len(name)-1:], ".-_:") {
		return "", fmt.Errorf("runtimes need a name that ends with a letter or a digit, and %q does not", name)
	}
	return name, nil
}

// Path is the path of the tree that Name has made a name of.
func Path(name string) string { return "/" + strings.ReplaceAll(name, ":", "/") }

// Folder is where specifications are.
type Folder struct {
	Dir string
	// Tag tells the files of one daemon from those of others in the same folder: letters, digits and dashes.
	Tag string
}

// file is the path of the specification of an lgpu.
func (f Folder) file(id uint64) string {
	return filepath.Join(f.Dir, f.prefix()+strconv.FormatUint(id, 16)+suffix)
}

func (f Folder) prefix() string { return "lgpu.io-" + f.Tag + "_" }

const suffix = ".json"

// Write writes the specification of the device that an lgpu is.
func (f Folder) Write(id uint64, d Device) (err error) {
	data, err := json.MarshalIndent(File{Version: version, Kind: Kind, Devices: []Device{d}}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the specification of %s=%s: %w", Kind, d.Name, err)
	}
	data = append(data, '\n')
	path := f.file(id)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil // runtimes watch the folder
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of specifications: %w", err)
	}
	// Until it is complete it has no name that runtimes read.
	if err := wholefile.Write(path, bytes.NewReader(data), 0o644); err != nil {
		return fmt.Errorf("offer %s=%s to containers: %w", Kind, d.Name, err)
	}
	return nil
}

// Remove removes the specification of an lgpu, if there is one.
func (f Folder) Remove(id uint64) error {
	if err := os.Remove(f.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a specification: %w", err)
	}
	return nil
}

// Keep removes all specifications but those of some lgpus: a daemon that was killed has left those of lgpus that are gone.
func (f Folder) Keep(ids []uint64) error {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("list the specifications: %w", err)
	}
	var failed []error
	for _, e := range entries {
		digits, ours := strings.CutPrefix(strings.TrimSuffix(e.Name(), suffix), f.prefix())
		id, err := strconv.ParseUint(digits, 16, 64)
		if ours && err == nil && filepath.Base(f.file(id)) == e.Name() && !slices.Contains(ids, id) {
			failed = append(failed, f.Remove(id))
		}
	}
	return errors.Join(failed...)
}

// maxFile bounds in bytes a specification that is read.
const maxFile = 1 << 20

// Listed is a device that containers can have.
type Listed struct {
	Device
	File string
}

// List returns the lgpus that the specifications in some folders have, of whichever daemon, by name. A file that cannot be
// read is left out, and named in the error beside the others.
func List(dirs ...string) (all []Listed, err error) {
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*"+suffix)) // the pattern is well formed
		for _, path := range files {
			f, failed := read(path)
			if failed != nil {
				err = errors.Join(err, failed)
				continue
			}
			if f.Kind != Kind {
				continue
			}
			for _, d := range f.Devices {
				all = append(all, Listed{d, path})
			}
		}
	}
	slices.SortFunc(all, func(a, b Listed) int { return strings.Compare(a.Name+"\x00"+a.File, b.Name+"\x00"+b.File) })
	return all, err
}

// read reads a specification.
func read(path string) (File, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
		err = fmt.Errorf("%s is no specification", path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil // an lgpu that was removed just now
	}
	if err != nil {
		return File{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, err
	}
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
