package region

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lgpu/lgpu/internal/names"
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
	Name       string         // as names.Check has it
	HostMemory uint64         // limit on page-locked host memory in bytes, or NoLimit
	Devices    []DeviceLimits // 1 to MaxDevices, in the order in which the tenant sees them
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
	if err := names.Check(s.Name); err != nil {
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
