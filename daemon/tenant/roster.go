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

// Layout of a roster file: what it is, how much of each kind of memory the lgpu can use at most, and which process has
// which index. Each change is one small write, which a killed daemon leaves done or not done.
const (
	rosterTag     = "LGPUROS\x01"
	rosterMachine = 128                                         // room for tag and machine
	rosterClients = rosterMachine + 8*(region.MaxDevices+1)     // page-locked host memory, then the devices
	rosterBytes   = rosterClients + 16*int64(region.MaxClients) // pid and start of each
	hostKind      = 0                                           // of the kinds of memory; device i is i+1
	kinds         = (rosterClients - rosterMachine) / 8
	// What clients hold of devices comes last, for each client and device: bytes, and device and inode of a memory file;
	// then, for each again, device and inode of a file on a disk. Where the file ends, nobody holds anything.
	heldBytes = 24
	diskBytes = 16
)

// roster is the file from which a new daemon knows the clients of an lgpu.
type roster struct {
	file    *os.File
	charged [kinds]uint64
	clients [region.MaxClients]Process // as the file was opened
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
		err := file.Truncate(0)
		if err == nil {
			_, err = file.WriteAt(content, 0)
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("write roster: %w", err)
		}
	}
	for i := range r.charged {
		r.charged[i] = binary.LittleEndian.Uint64(content[rosterMachine+8*i:])
	}
	for i := range r.clients {
		entry := content[rosterClients+16*i:]
		pid := binary.LittleEndian.Uint64(entry)
		if pid <= 1<<31-1 {
			r.clients[i] = Process{PID: int(pid), Start: binary.LittleEndian.Uint64(entry[8:])}
		}
	}
	return r, nil
}

func rosterPath(dir string, lgpu uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x", lgpu))
}

// setClient notes that p is the client with an index; the zero Process frees the index.
func (r *roster) setClient(index int, p Process) error {
	entry := binary.LittleEndian.AppendUint64(nil, uint64(p.PID))
	entry = binary.LittleEndian.AppendUint64(entry, p.Start)
	if _, err := r.file.WriteAt(entry, rosterClients+16*int64(index)); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	return nil
}

// setCharged notes how much of a kind of memory the lgpu can use at most.
func (r *roster) setCharged(kind int, bytes uint64) error {
	word := binary.LittleEndian.AppendUint64(nil, bytes)
	if _, err := r.file.WriteAt(word, rosterMachine+8*int64(kind)); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	return nil
}

// setHeld notes what a client holds of a device.
func (r *roster) setHeld(index, device int, h Held) error {
	entry := binary.LittleEndian.AppendUint64(nil, h.Taken)
	entry = appendInode(entry, h.Stores[0])
	_, err := r.file.WriteAt(entry, heldAt(index, device))
	if err == nil {
		_, err = r.file.WriteAt(appendInode(nil, h.Stores[1]), diskAt(index, device))
	}
	if err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	return nil
}

func appendInode(entry []byte, i region.Inode) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(entry, i.Device), i.Number)
}

func inodeOf(entry []byte) region.Inode {
	return region.Inode{Device: binary.LittleEndian.Uint64(entry), Number: binary.LittleEndian.Uint64(entry[8:])}
}

func heldAt(index, device int) int64 {
	return rosterBytes + heldBytes*int64(index*region.MaxDevices+device)
}

func diskAt(index, device int) int64 {
	return heldAt(region.MaxClients, 0) + diskBytes*int64(index*region.MaxDevices+device)
}

// readAt reads so many bytes. What cannot be read is zero.
func (r *roster) readAt(at int64, bytes int) []byte {
	content := make([]byte, bytes)
	if n, err := r.file.ReadAt(content, at); err != nil {
		clear(content[n:])
	}
	return content
}

// held returns what a client holds of its devices. What cannot be read is nothing.
func (r *roster) held(index, devices int) []Held {
	content, disks := r.readAt(heldAt(index, 0), heldBytes*devices), r.readAt(diskAt(index, 0), diskBytes*devices)
	out := make([]Held, devices)
	for i := range out {
		entry := content[heldBytes*i:]
		out[i] = Held{Taken: binary.LittleEndian.Uint64(entry), Stores: [stores]region.Inode{inodeOf(entry[8:]), inodeOf(disks[diskBytes*i:])}}
	}
	return out
}

// release notes that a client holds nothing.
func (r *roster) release(index int) error {
	_, err := r.file.WriteAt(make([]byte, heldBytes*region.MaxDevices), heldAt(index, 0))
	if err == nil {
		_, err = r.file.WriteAt(make([]byte, diskBytes*region.MaxDevices), diskAt(index, 0))
	}
	if err != nil {
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
