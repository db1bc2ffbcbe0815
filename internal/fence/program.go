package fence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of the kernel's interface (linux/bpf.h).
const (
	progLoad        = 5  // BPF_PROG_LOAD
	progAttach      = 8  // BPF_PROG_ATTACH
	progDetach      = 9  // BPF_PROG_DETACH
	progByID        = 13 // BPF_PROG_GET_FD_BY_ID
	progQuery       = 16 // BPF_PROG_QUERY
	typeDevice      = 15 // BPF_PROG_TYPE_CGROUP_DEVICE
	attachDevice    = 6  // BPF_CGROUP_DEVICE
	allowMulti      = 2  // BPF_F_ALLOW_MULTI: programs of cgroups above go on to hold
	characterDevice = 2  // BPF_DEVCG_DEV_CHAR
	maxDenied       = 512
)

// Instructions (linux/bpf.h, linux/bpf_common.h).
const (
	loadWord = 0x61 // BPF_LDX | BPF_MEM | BPF_W
	and      = 0x57 // BPF_ALU64 | BPF_AND | BPF_K
	move     = 0xb7 // BPF_ALU64 | BPF_MOV | BPF_K
	jumpNot  = 0x55 // BPF_JMP | BPF_JNE | BPF_K
	exit     = 0x95 // BPF_JMP | BPF_EXIT
)

// program returns the instructions that answer 0 for an access to a denied device, and else 1. The kernel gives it three
// words: kind and access, major, minor (struct bpf_cgroup_dev_ctx).
func program(denied []Device) []byte {
	var code []byte
	add := func(operation, to, from byte, offset int16, value uint32) {
		code = append(code, operation, from<<4|to)
		code = binary.NativeEndian.AppendUint16(code, uint16(offset))
		code = binary.NativeEndian.AppendUint32(code, value)
	}
	end := func(answer uint32) {
		add(move, 0, 0, 0, answer)
		add(exit, 0, 0, 0, 0)
	}
	add(loadWord, 2, 1, 4, 0)
	add(loadWord, 3, 1, 8, 0)
	add(loadWord, 4, 1, 0, 0)
	add(and, 4, 0, 0, 0xffff)
	add(move, 0, 0, 0, 1)
	add(jumpNot, 4, 0, int16(4*len(denied)), characterDevice) // to the end, which answers 1
	for _, d := range denied {
		add(jumpNot, 2, 0, 3, d.Major)
		add(jumpNot, 3, 0, 2, d.Minor)
		end(0)
	}
	end(1)
	return code
}

// denyV2 attaches the program to a cgroup of version 2. It goes with the cgroup.
func denyV2(dir string, denied []Device) error {
	if len(denied) > maxDenied {
		return fmt.Errorf("%d devices to deny, at most %d", len(denied), maxDenied)
	}
	cgroup, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	code, license := program(denied), []byte("Apache-2.0\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&code[0])
	pin.Pin(&license[0])
	load := struct {
		kind, count   uint32
		code, license uint64
		log           [3]uint64
	}{kind: typeDevice, count: uint32(len(code) / 8), code: address(code), license: address(license)}
	fd, err := bpf(progLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
	if err != nil {
		return fmt.Errorf("load a BPF program: %w", err)
	}
	defer unix.Close(fd)
	attach := struct{ target, program, kind, flags uint32 }{uint32(cgroup.Fd()), uint32(fd), attachDevice, allowMulti}
	if _, err := bpf(progAttach, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); err != nil {
		return fmt.Errorf("attach a BPF program: %w", err)
	}
	return nil
}

// changeV2 attaches the program to a cgroup in place of those that denyV2 has attached. There is no moment without one.
func changeV2(dir string, denied []Device) error {
	cgroup, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	var old [64]uint32 // as many as the kernel allows
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&old)
	query := struct {
		target, kind, flags, attached uint32
		ids                           uint64
		count, _                      uint32
	}{target: uint32(cgroup.Fd()), kind: attachDevice, ids: uint64(uintptr(unsafe.Pointer(&old))), count: uint32(len(old))}
	if _, err := bpf(progQuery, unsafe.Pointer(&query), unsafe.Sizeof(query)); err != nil {
		return fmt.Errorf("find its BPF programs: %w", err)
	}
	if err := denyV2(dir, denied); err != nil {
		return err
	}
	for _, id := range old[:min(query.count, uint32(len(old)))] {
		byID := struct{ id, next, flags uint32 }{id: id}
		fd, err := bpf(progByID, unsafe.Pointer(&byID), unsafe.Sizeof(byID))
		if err != nil {
			return fmt.Errorf("open a BPF program: %w", err)
		}
		detach := struct{ target, program, kind, flags uint32 }{uint32(cgroup.Fd()), uint32(fd), attachDevice, 0}
		_, err = bpf(progDetach, unsafe.Pointer(&detach), unsafe.Sizeof(detach))
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("detach a BPF program: %w", err)
		}
	}
	return nil
}

// address is that of bytes which are pinned.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// bpf is the system call. The kernel asks that it be made again when a signal interrupted its check of a program.
func bpf(command uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	for range 100 {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
		if errno == 0 {
			return int(fd), nil
		}
		if !errors.Is(errno, unix.EAGAIN) && !errors.Is(errno, unix.EINTR) {
			return -1, errno
		}
	}
	return -1, unix.EAGAIN
}
