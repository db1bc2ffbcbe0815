package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// image is a file system as it goes into an archive: what each file has, and "" for a folder.
type image map[string]string

// libraries are what the programs of an image load, beside the driver's libraries, which lgpu brings.
var libraries = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}

// images makes the archives of the images that pods use. No registry is asked: they have programs of this machine.
func (n *node) images() error {
	pause, err := n.compile("pause", "-static")
	if err != nil {
		return err
	}
	view, err := n.compile("view", "-I../../tenant/abi/include", absolute("lib/sim/libnvidia-ml.so.1"))
	if err != nil {
		return err
	}
	app := image{"tmp/": "", "proc/": "", "sys/": "", "dev/": "", "etc/": "", "run/": "",
		"bin/sh": "/bin/dash", "bin/env": "/usr/bin/env", "bin/sleep": "/bin/sleep", "bin/cat": "/bin/cat",
		"view": view, "tenant": absolute("demo/tenant"), "compute.ptx": "../../sim/kernels/compute.ptx",
		"lib64/ld-linux-x86-64.so.2": "/lib64/ld-linux-x86-64.so.2"}
	for _, l := range libraries {
		app["lib/x86_64-linux-gnu/"+l] = "/lib/x86_64-linux-gnu/" + l
	}
	lgpu := image{"tmp/": "", "usr/bin/lgpu": "../../bin/lgpu", "usr/bin/lgpu-kube": "../../bin/lgpu-kube"}
	// The next version does the same, and is another program.
	data, err := os.ReadFile("../../bin/lgpu")
	if err != nil {
		return fmt.Errorf("%w; run: make build", err)
	}
	next := filepath.Join(n.dir, "lgpu-next")
	if err := os.WriteFile(next, append(data, 0), 0o755); err != nil {
		return err
	}
	upgraded := image{"tmp/": "", "usr/bin/lgpu": next, "usr/bin/lgpu-kube": "../../bin/lgpu-kube"}
	return errors.Join(n.archive("pause", "pause:1", image{"pause": pause}, "/pause"), n.archive("app", "app:1", app),
		n.archive("lgpu-1", "lgpu:1", lgpu), n.archive("lgpu-2", "lgpu:2", upgraded), os.Remove(next))
}

// compile makes one of the programs, and returns where it is.
func (n *node) compile(name string, more ...string) (string, error) {
	program := filepath.Join(n.dir, name)
	args := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "programs/" + name + ".c"}
	if out, err := exec.Command("cc", append(args, more...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", name, err, out)
	}
	return program, nil
}

// archive writes an image with one layer (OCI image layout).
func (n *node) archive(file, name string, files image, entrypoint ...string) error {
	layer, err := files.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	blobs := map[string][]byte{}
	put := func(kind string, data []byte) map[string]any {
		sum := sha256.Sum256(data)
		digest := hex.EncodeToString(sum[:])
		blobs["blobs/sha256/"+digest] = data
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(data)}
	}
	described := put("layer.v1.tar", layer)
	config := put("config.v1+json", document(map[string]any{"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{described["digest"]}}}))
	manifest := put("manifest.v1+json", document(map[string]any{"schemaVersion": 2,
		"mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []any{described}}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": "localhost/" + name}
	blobs["index.json"] = document(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	f, err := os.Create(filepath.Join(n.dir, file+".tar"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for path, data := range blobs {
		err = errors.Join(err, add(w, path, 0o644, data))
	}
	return errors.Join(err, w.Close())
}

func document(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // there is nothing in v that JSON does not have
	}
	return data
}

// layer is the archive of a file system. Links are followed: an image has files.
func (i image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	folders := map[string]bool{"./": true}
	for path := range i {
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			folders[dir+"/"] = true
		}
		if strings.HasSuffix(path, "/") {
			folders[path] = true
		}
	}
	for dir := range folders {
		mode := int64(0o755)
		if dir == "tmp/" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: mode}); err != nil {
			return nil, err
		}
	}
	for path, from := range i {
		if strings.HasSuffix(path, "/") {
			continue
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := add(w, path, 0o755, data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

func add(w *tar.Writer, path string, mode int64, data []byte) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(data))})
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
