package containers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Images. All have the static programs; only plain has a C library that will do.
const (
	plain  = "plain"  // this machine's shell and libraries, and libraries of a driver of its own
	listed = "listed" // plain, with a list of libraries for the loader, which names the driver of its own
	old    = "old"    // a C library that is too old
	musl   = "musl"
	bare   = "bare" // no C library
)

// images makes a folder for each image, and an archive of it.
func images(dir string) error {
	for _, name := range []string{plain, listed, old, musl, bare} {
		root := filepath.Join(dir, "image-"+name)
		for _, folder := range []string{"bin", "lib64", "lib/x86_64-linux-gnu", "usr/lib", "opt/driver", "etc", "proc", "sys", "dev", "tmp", "run"} {
			if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
				return err
			}
		}
		put := func(from, to string) error { return copyFile(from, filepath.Join(root, to)) }
		err := errors.Join(put(filepath.Join(dir, "launch"), "launch"), put(filepath.Join(dir, "become"), "become"))
		switch name {
		case plain:
			err = errors.Join(err, fill(dir, root))
		case listed:
			err = errors.Join(err, fill(dir, root), os.WriteFile(filepath.Join(root, "etc/ld.so.conf"), []byte("/opt/driver\n"), 0o644))
			if out, failed := exec.Command("ldconfig", "-r", root).CombinedOutput(); failed != nil {
				err = errors.Join(err, fmt.Errorf("ldconfig: %w\n%s", failed, out))
			}
		case old:
			err = errors.Join(err, put(filepath.Join(dir, "oldc.so"), "lib/x86_64-linux-gnu/libc.so.6"))
		case musl:
			err = errors.Join(err, put(muslLoader(), "lib/ld-musl-x86_64.so.1"))
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if out, err := exec.Command("tar", "-C", root, "-cf", root+".tar", ".").CombinedOutput(); err != nil {
			return fmt.Errorf("image %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// muslLoader is Debian's musl where it is installed. Nothing of it is run: any file will do.
func muslLoader() string {
	const debian = "/lib/ld-musl-x86_64.so.1"
	if _, err := os.Stat(debian); err == nil {
		return debian
	}
	return "/bin/true"
}

// fill gives an image a shell, the programs and all that they load, and copies of a driver in places where programs might
// find them: the software GPU's own, which knows no limits.
func fill(dir, root string) error {
	programs := map[string]string{
		"/bin/dash": "bin/sh", "/usr/bin/env": "bin/env", "/bin/cat": "bin/cat", "/bin/sleep": "bin/sleep",
		filepath.Join(dir, "grab"): "grab", filepath.Join(dir, "linked"): "linked", filepath.Join(dir, "keep"): "keep",
	}
	var err error
	for from, to := range programs {
		err = errors.Join(err, copyFile(from, filepath.Join(root, to)))
	}
	for _, library := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"} {
		err = errors.Join(err, copyFile("/lib/x86_64-linux-gnu/"+library, filepath.Join(root, "lib/x86_64-linux-gnu", library)))
	}
	err = errors.Join(err, copyFile("/lib64/ld-linux-x86-64.so.2", filepath.Join(root, "lib64/ld-linux-x86-64.so.2")))
	for _, place := range []string{"lib/x86_64-linux-gnu", "opt/driver"} {
		for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			err = errors.Join(err, copyFile("../../build/lib/sim/"+library, filepath.Join(root, place, library)))
		}
	}
	return errors.Join(err, copyFile("../../build/lib/liblgpu.so", filepath.Join(root, "opt/liblgpu.so")),
		os.WriteFile(filepath.Join(root, "ways"), []byte(ways()), 0o755))
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(to, 0o755)
}

// way is how a program of a container tries to get beyond its limit.
type way struct{ name, command string }

// tried are the ways that the program "ways" of the image tries, one after the other.
var tried = []way{
	{"as it is", "/grab"},
	{"linked", "/linked"},
	{"with NVML", "/grab both"},
	{"RTLD_DEEPBIND", "/grab deepbind"},
	{"dlmopen", "/grab dlmopen"},
	{"env -i", "env -i /grab"},
	{"env -i, linked", "env -i /linked"},
	{"static launcher", "/launch /grab"},
	{"su", "/become 65534 /grab"},
	{"forged LGPU_SOCKET", "env LGPU_SOCKET=/dev/null /grab"},
	{"forged LGPU_REGION", "env LGPU_REGION=/tmp/region /grab"},
	{"forged LGPU_REAL_LIBCUDA", "env LGPU_REAL_LIBCUDA=/opt/driver/libcuda.so.1 /grab"},
	{"HAMi's environment", "env CUDA_DEVICE_MEMORY_LIMIT=3g CUDA_DISABLE_CONTROL=1 /grab"},
	{"forged LD_PRELOAD", "env LD_PRELOAD=libm.so.6 /grab"},
	{"preloaded interposer", "env LD_PRELOAD=/run/lgpu/lib/liblgpu.so /grab"},
	{"forged LD_LIBRARY_PATH", "env LD_LIBRARY_PATH=/lib/x86_64-linux-gnu:/opt/driver /grab"},
	{"its own driver", "env -i LD_LIBRARY_PATH=/opt/driver /linked"},
}

// ways is a shell program that tries all ways and says what came of each.
func ways() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, w := range tried {
		fmt.Fprintf(&b, "echo \"%s => $(%s 2>&1)\"\n", w.name, w.command)
	}
	return b.String()
}
