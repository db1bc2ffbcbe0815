package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// reservation is the file that reserves a machine's devices for the daemon of a runtime folder.
const reservation = "lgpud.system"

// Reserve reserves the machine's devices for the daemon of the runtime folder dir, also while it is away, until
// Unreserve. What others see of it lasts no longer than the folder: a machine that has just booted is free.
func Reserve(dir string) error {
	text := "The devices of this machine are for the daemon of this folder, also while it is away.\n" +
		"lgpu daemon stop ends that.\n"
	if err := os.WriteFile(filepath.Join(dir, reservation), []byte(text), 0o644); err != nil {
		return fmt.Errorf("reserve the machine's devices: %w", err)
	}
	return nil
}

// Unreserve lets others use the machine's devices. It does nothing where they were not reserved.
func Unreserve(dir string) error {
	if err := os.Remove(filepath.Join(dir, reservation)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let others use the machine's devices: %w", err)
	}
	return nil
}

// Reserved reports whether the machine's devices are reserved for the daemon of the runtime folder dir. Whom the folder
// does not let look is told that they are: only an administrator closes it.
func Reserved(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, reservation))
	return err == nil || errors.Is(err, fs.ErrPermission)
}
