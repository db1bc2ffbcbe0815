package region

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrSpec: what was asked for cannot be laid out as a region.
	ErrSpec = errors.New("not a possible lgpu")
	// ErrInvalid: it is no part of a region of this version.
	ErrInvalid = errors.New("not a valid region")
)

// Spec is what a new region grants.
type Spec struct {
	ID         uint64         // 0: one is drawn
	Name       string         // as CheckName has it
	HostMemory uint64         // limit on page-locked host memory in bytes, or NoLimit
	Devices    []DeviceLimits // 1 to MaxDevices, in the order in which the tenant sees them
}

// CheckName reports why name cannot name an lgpu: names have 1 to 63 letters, digits, dots, dashes and underscores and
// begin with a letter or a digit.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("name %q has %d characters; 1 to 63 are possible", name, len(name))
	}
	for i, r := range []byte(name) {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9'
		if !letter && (i == 0 || r != '.' && r != '-' && r != '_') {
			return fmt.Errorf("name %q: %q is not possible there; names are letters, digits, dots, dashes and underscores",
				name, string(r))
		}
	}
	return nil
}

// Limits returns what s asks for as a region has it, or an error that wraps ErrSpec.
func (s Spec) Limits() (Limits, error) {
	if err := s.check(); err != nil {
		return Limits{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	l := Limits{
		Magic: Magic, Version: Version, Devices: uint32(len(s.Devices)),
		ID: s.ID, HostMemory: s.HostMemory, CreatedUnixNano: time.Now().UnixNano(),
	}
	if l.ID == 0 {
		var id [8]byte
		rand.Read(id[:])
		l.ID = binary.LittleEndian.Uint64(id[:]) | 1
	}
	copy(l.Name[:], s.Name)
	copy(l.Device[:], s.Devices)
	return l, nil
}

func (s Spec) check() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	if len(s.Devices) < 1 || len(s.Devices) > MaxDevices {
		return fmt.Errorf("%d devices; 1 to %d are possible", len(s.Devices), MaxDevices)
	}
	for i, d := range s.Devices {
		if d.Compute > FullCompute {
			return fmt.Errorf("device %d has a compute share of %d hundredths of a percent", i, d.Compute)
		}
		for j, other := range s.Devices[:i] {
			if d.UUID == other.UUID {
				return fmt.Errorf("devices %d and %d are the same", j, i)
			}
		}
	}
	return nil
}
