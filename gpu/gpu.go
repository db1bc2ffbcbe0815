// Package gpu says which devices a machine has, whoever made them. Packages nvidia and sim implement Inventory; choosing
// devices by what a user typed is the same for both and is here.
package gpu

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Inventory is a source of devices.
type Inventory interface {
	// Devices returns the devices in the order of their index. It may be called again to see changes, by one goroutine at
	// a time.
	Devices() ([]Device, error)
	// Close ends the use of the driver. Devices returned before stay valid.
	Close() error
}

// Device is one physical or software GPU.
type Device struct {
	UUID   UUID
	Index  int    // in the vendor's own numbering
	Name   string // product name
	Memory uint64 // bytes
	Units  int    // compute units (SMs); 0 where the driver does not say
	PCI    string // PCI address, such as 0000:1b:00.0
}

// UUID identifies a device for good.
type UUID [16]byte

// Errors that Select wraps.
var (
	ErrUnknownDevice = errors.New("no such device")
	ErrTwice         = errors.New("device is listed twice")
)

// ParseUUID reads the form that String writes; the prefix GPU- may be missing.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	digits := strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", "")
	if n, err := hex.Decode(u[:], []byte(digits[:min(len(digits), 32)])); err != nil || n != len(u) || len(digits) != 32 {
		return UUID{}, fmt.Errorf("%q is no device UUID; one looks like GPU-00112233-4455-6677-8899-aabbccddeeff", s)
	}
	return u, nil
}

// String writes u as NVIDIA's tools do.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Select returns the devices that tokens name, in the tokens' order: an index, a UUID, or the beginning of one that only
// one device has. An error wraps ErrUnknownDevice or ErrTwice and names the token.
func Select(devices []Device, tokens []string) ([]Device, error) {
	var chosen []Device
	seen := map[UUID]bool{}
	for _, token := range tokens {
		d, err := find(devices, strings.TrimSpace(token))
		if err != nil {
			return nil, err
		}
		if seen[d.UUID] {
			return nil, fmt.Errorf("device %q: %w", token, ErrTwice)
		}
		seen[d.UUID] = true
		chosen = append(chosen, d)
	}
	return chosen, nil
}

func find(devices []Device, token string) (Device, error) {
	if index, err := strconv.ParseUint(token, 10, 31); err == nil {
		for _, d := range devices {
			if d.Index == int(index) {
				return d, nil
			}
		}
		return Device{}, fmt.Errorf("device %q: %w", token, ErrUnknownDevice)
	}
	var found []Device
	for _, d := range devices {
		if len(token) > len("GPU-") && strings.HasPrefix(strings.ToLower(d.UUID.String()), strings.ToLower(token)) {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return Device{}, fmt.Errorf("device %q: %w", token, ErrUnknownDevice)
	case 1:
		return found[0], nil
	}
	return Device{}, fmt.Errorf("device %q: %w; %d UUIDs begin so", token, ErrUnknownDevice, len(found))
}
