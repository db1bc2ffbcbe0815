package contain

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkLibc returns why the image's C library cannot load the interposer and the driver.
func (i *Image) checkLibc(s search) error {
	found, _ := s.find("libc.so.6")
	if len(found) == 0 {
		return i.withoutLibc()
	}
	has, err := i.glibc(found[0], (*elf.File).DynamicVersions)
	if err != nil {
		return err
	}
	paths := []string{filepath.Join(LibraryDir, sonames[0])}
	for _, soname := range sonames {
		paths = append(paths, filepath.Join(DriverDir, soname))
	}
	for _, path := range paths {
		needs, err := i.glibc(path, neededOf)
		if err != nil {
			return err
		}
		if has.less(needs) {
			return fmt.Errorf("the image has glibc %s, and %s needs %s; build the image on a newer release of its distribution",
				has, filepath.Base(path), needs)
		}
	}
	return nil
}

// withoutLibc says what an image without glibc is.
func (i *Image) withoutLibc() error {
	lib, err := i.at("/lib", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		names, _ := lib.Readdirnames(maxNames) // what is not read is not found
		lib.Close()
		if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "ld-musl-") }) {
			return errors.New("the image has the C library musl, and the driver's libraries need glibc; " +
				"use an image that is based on Debian, Ubuntu or Red Hat, not on Alpine")
		}
	}
	return errors.New("the image has no C library that could load the driver's libraries, which need glibc; " +
		"use an image that is based on a distribution")
}

// maxNames bounds how many files of a folder of the image are looked at.
const maxNames = 1 << 16

// glibcVersion is a version of glibc: 2.36 is {2, 36}.
type glibcVersion struct{ major, minor int }

func (v glibcVersion) less(w glibcVersion) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func (v glibcVersion) String() string { return strconv.Itoa(v.major) + "." + strconv.Itoa(v.minor) }

// glibc returns the newest version of glibc that a library of the image names.
func (i *Image) glibc(path string, named func(*elf.File) ([]elf.DynamicVersion, error)) (newest glibcVersion, err error) {
	f, err := i.open(path)
	if err != nil {
		return glibcVersion{}, err
	}
	defer f.Close()
	library, err := elf.NewFile(f)
	if err != nil {
		return glibcVersion{}, fmt.Errorf("look at %s of the image: %w", path, err)
	}
	versions, err := named(library)
	if err != nil {
		return glibcVersion{}, fmt.Errorf("look at %s of the image: %w", path, err)
	}
	for _, v := range versions {
		if w, ok := parseGlibc(v.Name); ok && newest.less(w) {
			newest = w
		}
	}
	return newest, nil
}

// neededOf returns the versions that a library needs of others.
func neededOf(f *elf.File) (all []elf.DynamicVersion, err error) {
	needs, err := f.DynamicVersionNeeds()
	for _, n := range needs {
		for _, d := range n.Needs {
			all = append(all, elf.DynamicVersion{Name: d.Dep})
		}
	}
	return all, err
}

// parseGlibc reads the name of a version: GLIBC_2.36, with a third number in old ones.
func parseGlibc(name string) (v glibcVersion, ok bool) {
	text, ok := strings.CutPrefix(name, "GLIBC_")
	major, minor, found := strings.Cut(text, ".")
	minor, _, _ = strings.Cut(minor, ".")
	var bad [2]error
	v.major, bad[0] = strconv.Atoi(major)
	v.minor, bad[1] = strconv.Atoi(minor)
	return v, ok && found && bad == [2]error{}
}
