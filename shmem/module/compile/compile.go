// Package compile makes modules of PTX from CUDA sources, for go generate. It needs the compiler, but no CUDA. A build
// needs neither: it embeds the results, which package module reads.
package compile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"

	"github.com/lgpu/lgpu/shmem/module"
)

// Compiler is the command that makes PTX. Another version makes other PTX of the same source.
const Compiler = "clang-19"

// Source says what to compile, and how.
type Source struct {
	Folder  string   // where the compiler runs
	File    string   // a .cu file there
	ISA     string   // the version of PTX without its point; drivers from 470 on take 74, those from 520 on take 78
	Defines []string // NAME or NAME=VALUE
}

// comments are those that the compiler puts into PTX, a third of the text, and empty lines.
var comments = regexp.MustCompile(`(?m)^[ \t]*(//.*)?\n|[ \t]+//.*$`)

// Text compiles the source. The error wraps exec.ErrNotFound where there is no compiler.
func (s Source) Text() ([]byte, error) {
	args := []string{"-x", "cuda", "-std=c++17", "--cuda-device-only", "--cuda-gpu-arch=sm_70",
		"-Xclang", "-target-feature", "-Xclang", "+ptx" + s.ISA, "-nocudainc", "-nocudalib",
		"-Wall", "-Wextra", "-Werror", "-O3", "-S", "-o", "-"}
	for _, d := range s.Defines {
		args = append(args, "-D"+d)
	}
	cmd := exec.Command(Compiler, append(args, s.File)...)
	cmd.Dir = s.Folder
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("compile %s: %w\n%s", s.File, err, errs.Bytes())
	}
	return comments.ReplaceAll(out.Bytes(), nil), nil
}

// Write compiles the source into the file at path. It does not touch a file that has this text already: another version
// of Go may compress the same text to other bytes.
func (s Source) Write(path string) error {
	text, err := s.Text()
	if err != nil {
		return err
	}
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if Same(have, text) {
		return nil
	}
	packed, err := pack(text)
	if err != nil {
		return fmt.Errorf("compress %s: %w", path, err)
	}
	return os.WriteFile(path, packed, 0o644)
}

// Same says whether a packed module has this text.
func Same(packed, text []byte) bool {
	image, err := module.Image(packed)
	return err == nil && bytes.Equal(image[:len(image)-1], text)
}

// pack compresses a text. The result contains neither a name nor a time, so equal texts become equal files.
func pack(text []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
