package ibgda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/verbs"
)

// newProvider makes the provider that the settings name.
func newProvider(c *Config) (nic.Provider, error) {
	switch c.NIC {
	case None:
		return nil, fmt.Errorf("ibgda: LSHMEM_NIC is none: %w", nic.ErrNoDevice)
	case MLX5:
		return newMLX5(c)
	case Host:
		return provider(newSoft(c))
	case GPU:
		return provider(newResident(c))
	}
	p, err := newMLX5(c)
	if err == nil {
		var infos []nic.Info
		if infos, err = p.NICs(); err == nil {
			_, err = choose(&c.Settings, infos, c.Location, c.Turn)
		}
		if err == nil {
			return p, nil
		}
		err = errors.Join(err, p.Close())
	}
	if !errors.Is(err, nic.ErrNoDevice) {
		return nil, err
	}
	c.Log("ibgda: the software HCA: %v", err)
	return provider(newSoft(c))
}

// provider makes an interface of what a constructor returned: nil where there is an error, not a nil pointer, on which
// methods would be called.
func provider[P nic.Provider](p P, err error) (nic.Provider, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

func newMLX5(c *Config) (nic.Provider, error) {
	return provider(verbs.Open(verbs.Options{GIDIndex: c.GIDIndex, RoCEVersion: c.RoCEVersion, IPv6: c.AddressIPv6, Range: c.AddressRange,
		TrafficClass: c.TrafficClass, ServiceLevel: c.ServiceLevel, PartitionKey: c.PartitionKey, Retries: c.Retries,
		AckTimeout: c.AckTimeout, Reads: c.ReadsAtOnce, Log: c.Log}))
}

// addressOf is where a slice lies.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func littleEndian(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }
func putLittleEndian(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
