package tenant

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lgpu/lgpu/tenant/region"
)

// Layout of a roster file: what it is, what of each kind of memory the lgpu may hold at most, and which process has
// which slot. It is written with one small write for each change, which a killed daemon leaves done or not done.
const (
	rosterTag     = "LGPUROS\x01"
	rosterMachine = 128                                       // room for tag and machine
	rosterSlots   = rosterMachine + 8*(region.MaxDevices+1)   // page-locked host memory, then the devices
	rosterBytes   = rosterSlots + 16*int64(region.MaxClients) // pid and start of each
	hostKind      = 0                                         // of the kinds of memory; device i is i+1
	kinds         = (rosterSlots - rosterMachine) / 8
)

// roster is the file that tells a new daemon who the clients of an lgpu are.
type roster struct {
	file *os.File
	held [kinds]uint64
	slot [region.MaxClients]Process // as the file was opened
}

// machine names what pids and start times are relative to: this boot and this PID namespace.
func machine() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the machine's boot ID: %w", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("read the PID namespace: %w", err)
	}
	return string(bytes.TrimSpace(boot)) + " " + namespace, nil
}

// openRoster opens the roster of an lgpu, or makes it. One that is of another boot, or broken, is begun anew.
func openRoster(dir string, lgpu uint64, machine string) (*roster, error) {
	file, err := os.OpenFile(rosterPath(dir, lgpu), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open roster: %w", err)
	}
	r := &roster{file: file}
	head := make([]byte, rosterMachine)
	copy(head[copy(head, rosterTag):], machine)
	content := make([]byte, rosterBytes)
	if n, _ := file.ReadAt(content, 0); n < len(content) || !bytes.Equal(content[:rosterMachine], head) {
		clear(content)
		copy(content, head)
		if _, err := file.WriteAt(content, 0); err != nil {
			file.Close()
			return nil, fmt.Errorf("write roster: %w", err)
		}
	}
	for i := range r.held {
		r.held[i] = binary.LittleEndian.Uint64(content[rosterMachine+8*i:])
	}
	for i := range r.slot {
		entry := content[rosterSlots+16*i:]
		pid := binary.LittleEndian.Uint64(entry)
		if pid <= 1<<31-1 {
			r.slot[i] = Process{PID: int(pid), Start: binary.LittleEndian.Uint64(entry[8:])}
		}
	}
	return r, nil
}

func rosterPath(dir string, lgpu uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x", lgpu))
}

// put notes that a slot is p's; the zero Process frees it.
func (r *roster) put(slot int, p Process) error {
	entry := binary.LittleEndian.AppendUint64(nil, uint64(p.PID))
	entry = binary.LittleEndian.AppendUint64(entry, p.Start)
	if _, err := r.file.WriteAt(entry, rosterSlots+16*int64(slot)); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	return nil
}

// hold notes what the lgpu may hold at most of a kind of memory.
func (r *roster) hold(kind int, bytes uint64) error {
	word := binary.LittleEndian.AppendUint64(nil, bytes)
	if _, err := r.file.WriteAt(word, rosterMachine+8*int64(kind)); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	return nil
}

func (r *roster) close() { r.file.Close() }

func (r *roster) remove() error {
	r.close()
	if err := os.Remove(r.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove roster: %w", err)
	}
	return nil
}

// sweepRosters removes the rosters in dir of lgpus that are not known.
func sweepRosters(dir string, known func(lgpu uint64) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list rosters: %w", err)
	}
	var failed error
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 16, 64)
		if err == nil && rosterPath("", id) == e.Name() && !known(id) {
			failed = errors.Join(failed, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return failed
}
