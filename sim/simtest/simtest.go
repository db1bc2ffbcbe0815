// Package simtest gives other packages' tests a software GPU: its libraries, compiled for the test, and a hardware
// process within the test process.
package simtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/lgpu/lgpu/sim"
)

// CC is the C compiler: $CC or cc.
func CC() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

// Source returns the folder with the C sources of the client libraries.
func Source() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "client")
}

// Libraries compiles the client libraries, with extra flags for the compiler, and returns their folder, which lives as
// long as the test.
func Libraries(t testing.TB, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	makefile := filepath.Join(dir, "Makefile")
	text := "SIMC := " + Source() + "\nSIMC_OUT := " + dir + "\nall: " + dir + "/libcuda.so.1 " + dir + "/libnvidia-ml.so.1\ninclude " + filepath.Join(Source(), "build.mk") + "\n"
	if err := os.WriteFile(makefile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-s", "-f", makefile, "CC=" + CC(), "SIMC_CFLAGS=-std=c11 -O2 -g -Wall -Wextra"}
	for _, f := range flags {
		args[len(args)-1] += " " + f
	}
	if len(flags) > 0 {
		args = append(args, "SIMC_DEFS=") // a sanitizer's symbols come with the program
	}
	if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
		t.Fatalf("compile the client libraries: %v\n%s", err, out)
	}
	return dir
}

// Serve is a hardware process of the given shape within the test process, until the test's end. It returns the socket.
func Serve(t testing.TB, shape sim.Shape) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu-sim") // the test's own folder may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sim.sock")
	l, err := sim.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Serve(ctx, l, shape, sim.ServeOptions{}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hardware process ended with %v", err)
		}
		os.RemoveAll(dir)
	})
	return socket
}
