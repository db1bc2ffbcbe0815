// Package contain runs a program in a mount namespace of its own in which the driver's libraries are lgpu's: every
// process below it that loads libcuda.so.1 or libnvidia-ml.so.1 gets the interposer, whatever its environment says, and
// device files of others cannot be opened. Without root it takes a user namespace.
//
//	plan, err := contain.Make(contain.Options{…})
//	started, err := plan.Start(path, argv, attr)  // as os.StartProcess
//	err = started.Confirm()                       // *Impossible: the kernel does not permit it, and nothing was started
//
// Hold builds such a namespace without a program, for processes that are to enter it, as when they are restored from an image.
// Of finds out from outside what namespace a program has.
//
// Make looks and changes nothing that others see. Start starts this executable again (Stage), which builds the namespace
// and becomes the program: the process id stays. The namespace goes with its last process, so nothing is left behind by
// a kill.
//
// What the namespace has: the interposer bound over every file that the dynamic loader would take for one of the two
// libraries; the real ones beside it, in a file system in memory (Options.Dir); where the loader would find none without
// LD_LIBRARY_PATH, a copy of /etc/ld.so.cache that names the interposer. The copy of the interposer is stamped with what
// a program needs to find its lgpu (tenant/liblgpu/base/stamp.c), and is read-only.
package contain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/contain/ldcache"
)

// Names of the driver's two libraries, and the variables that name the real ones to the interposer.
var (
	sonames   = []string{"libcuda.so.1", "libnvidia-ml.so.1"}
	variables = []string{"LGPU_REAL_LIBCUDA", "LGPU_REAL_LIBNVML"}
)

// pathVariable says where the loader looks first.
const pathVariable = "LD_LIBRARY_PATH"

// Options are what Make needs to know.
type Options struct {
	// Interposer is the path of liblgpu.so.
	Interposer string
	// Dir is the folder that gets the libraries inside of the namespace; Make makes it. Every user of the program must
	// be able to reach it.
	Dir string
	// Environment is the program's: LD_LIBRARY_PATH says where the loader looks first, and LGPU_REAL_LIBCUDA and
	// LGPU_REAL_LIBNVML, if they are set, which libraries are the driver's.
	Environment []string
	// Stamp is what a program needs in its environment to find its lgpu, for those that lose theirs.
	Stamp map[string]string
	// Hide are device files that the program may not open.
	Hide []string
	// Cgroup is the folder of a cgroup of version 2 that the program starts in, empty for the one that this process is in.
	Cgroup string
	// Tasks is the file of a cgroup of version 1 (tasks) in which the program enters itself, empty for none.
	Tasks string
}

// Plan is what the namespace will be like. One plan may start several programs, at the same time too.
type Plan struct {
	Dir        string
	Interposer string            // the file to stamp
	Stamp      map[string]string // what to write into it
	Real       map[string]string // by the library's name, which file is the driver's
	Covers     []string          // files that the interposer takes the place of
	Cache      []byte            // the new /etc/ld.so.cache; nil: as it is
	Kept       []string          // of Options.Environment, what Make looked at
	Hide       []string
	Cgroup     string
	Late       bool // the kernel does not start processes in a cgroup: the stage enters it
	Tasks      string
	Holds      bool // there is no program: the namespace stays as long as standard input is open

	Program   string // its path, its arguments and its environment
	Args, Env []string
}

// maxFile bounds in bytes what is written: a copy of the interposer, and of the loader's cache.
const maxFile = 32 << 20

// cachePath is the dynamic loader's list of libraries.
const cachePath = "/etc/ld.so.cache"

// Make plans the namespace of a program. An error says what is in the way on this machine.
func Make(o Options) (*Plan, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for the contained libraries: %w", err)
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &files); err != nil || files.Cur < maxFile {
		return nil, fmt.Errorf("files may have %d bytes (ulimit -f), too few for a copy of the library: %w", files.Cur, unix.EFBIG)
	}
	p := &Plan{Dir: o.Dir, Interposer: o.Interposer, Stamp: map[string]string{}, Real: map[string]string{}, Hide: o.Hide,
		Cgroup: o.Cgroup, Tasks: o.Tasks}
	for name, value := range o.Stamp {
		p.Stamp[name] = value
	}
	for _, name := range append([]string{pathVariable}, variables...) {
		if v := value(o.Environment, name); v != "" {
			p.Kept = append(p.Kept, name+"="+v)
		}
	}
	kind, err := kindOf(o.Interposer)
	if err != nil {
		return nil, err
	}
	s := search{kind: kind, path: filepath.SplitList(value(o.Environment, pathVariable)), open: os.Open}
	cache, cacheErr := s.readCache(cachePath)
	covers := map[string]bool{o.Interposer: true} // who still preloads it has it once
	var missing []string
	for i, soname := range sonames {
		found, without := s.find(soname)
		if named := value(o.Environment, variables[i]); named != "" {
			found = append([]string{named}, found...)
		}
		if len(found) == 0 {
			continue
		}
		real, err := filepath.EvalSymlinks(found[0])
		if err != nil {
			return nil, fmt.Errorf("find the driver's %s: %w", soname, err)
		}
		p.Real[soname] = real
		p.Stamp[variables[i]] = p.real(soname)
		for _, f := range found {
			if resolved, err := filepath.EvalSymlinks(f); err == nil {
				covers[resolved] = true
			}
		}
		if !without {
			missing = append(missing, soname)
		}
	}
	if len(p.Real) == 0 {
		return nil, errors.New("the dynamic loader finds neither libcuda.so.1 nor libnvidia-ml.so.1")
	}
	if len(missing) > 0 {
		if cacheErr != nil {
			return nil, fmt.Errorf("programs that lose LD_LIBRARY_PATH would not find %s: %w", strings.Join(missing, ", "), cacheErr)
		}
		if p.Cache, err = p.extend(cache, kind, missing); err != nil {
			return nil, fmt.Errorf("add to %s: %w", cachePath, err)
		}
	}
	for path := range covers {
		p.Covers = append(p.Covers, path)
	}
	slices.Sort(p.Covers)
	return p, nil
}

// real is where the driver's library is inside of the namespace.
func (p *Plan) real(soname string) string { return filepath.Join(p.Dir, "real", soname) }

// extend returns a copy of the loader's cache that names the interposer for libraries that it lacks.
func (p *Plan) extend(cache *ldcache.Cache, own kind, sonames []string) ([]byte, error) {
	libc := cache.Lookup("libc.so.6") // has the flags of libraries of this machine's kind, see find
	i := slices.IndexFunc(libc, func(e ldcache.Entry) bool { k, err := kindOf(e.Path); return err == nil && k == own })
	if i < 0 {
		return nil, errors.New("it has no libc.so.6 for programs of this machine's kind")
	}
	var added []ldcache.Entry
	for _, soname := range sonames {
		added = append(added, ldcache.Entry{Name: soname, Path: filepath.Join(p.Dir, soname), Flags: libc[i].Flags})
	}
	return cache.With(added...)
}

// Environment returns the environment that the program starts with: env, in which the real libraries are named as they
// are called inside of the namespace, if they are named at all.
func (p *Plan) Environment(env []string) []string {
	out := slices.Clone(env)
	for i, v := range out {
		name, _, _ := strings.Cut(v, "=")
		if at := slices.Index(variables, name); at >= 0 && p.Stamp[name] != "" {
			out[i] = name + "=" + p.Stamp[name]
		}
	}
	return out
}

// value is that of a variable, the first where there are several.
func value(env []string, name string) string {
	for _, v := range env {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value
		}
	}
	return ""
}
