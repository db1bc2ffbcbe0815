package bootstrap

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// idVersion is that of UniqueID's bytes and of the protocol that it belongs to. It is raised when either changes.
const idVersion = 1

// UniqueID is what a process needs to know to join a job: the root's addresses and a secret. Every
// process that has it may join, so it must be passed on as a password is.
//
//	 0  version, little-endian u32
//	 4  secret, 16 bytes
//	20  number of addresses, u8, and 3 bytes 0
//	24  4 addresses of 24 bytes: family u16 (4 or 6), port u16, 4 bytes 0, 16 bytes of address; unused ones are 0
//	120 4 bytes 0
//	124 CRC-32 (IEEE) of the bytes before it, little-endian
type UniqueID [128]byte

// Places in a UniqueID.
const (
	idSecret     = 4
	secretSize   = 16
	idCount      = 20
	idAddresses  = 24
	addressSize  = 24
	maxAddresses = 4
	idChecksum   = 124
)

// newID returns the id of a root at addresses.
func newID(secret [secretSize]byte, addresses []netip.AddrPort) (UniqueID, error) {
	var id UniqueID
	if len(addresses) == 0 || len(addresses) > maxAddresses {
		return id, fmt.Errorf("a unique id has 1 to %d addresses, not %d", maxAddresses, len(addresses))
	}
	binary.LittleEndian.PutUint32(id[:], idVersion)
	copy(id[idSecret:], secret[:])
	id[idCount] = byte(len(addresses))
	for i, a := range addresses {
		b := id[idAddresses+i*addressSize:][:addressSize]
		ip := a.Addr().Unmap()
		family := uint16(6)
		if ip.Is4() {
			family = 4
		}
		binary.LittleEndian.PutUint16(b, family)
		binary.LittleEndian.PutUint16(b[2:], a.Port())
		copy(b[8:], ip.AsSlice())
	}
	binary.LittleEndian.PutUint32(id[idChecksum:], crc32.ChecksumIEEE(id[:idChecksum]))
	return id, nil
}

// newSecret returns 128 random bits.
func newSecret() (s [secretSize]byte) {
	rand.Read(s[:]) // never fails
	return s
}

// secret is what tells those who may join.
func (id *UniqueID) secret() (s [secretSize]byte) {
	copy(s[:], id[idSecret:])
	return s
}

// Addresses are where the root listens, in the order of preference. The error says what is wrong with an id that was
// not made by NewUniqueID, by this version, or that was damaged on its way.
func (id *UniqueID) Addresses() ([]netip.AddrPort, error) {
	if *id == (UniqueID{}) {
		return nil, errors.New("unique id: all zero; was it passed on from the process that made it?")
	}
	if v := binary.LittleEndian.Uint32(id[:]); v != idVersion {
		return nil, fmt.Errorf("unique id: version %d, this lshmem has %d; use the same on all machines", v, idVersion)
	}
	if binary.LittleEndian.Uint32(id[idChecksum:]) != crc32.ChecksumIEEE(id[:idChecksum]) {
		return nil, errors.New("unique id: damaged (its checksum is wrong)")
	}
	n := int(id[idCount])
	if n == 0 || n > maxAddresses {
		return nil, fmt.Errorf("unique id: %d addresses", n)
	}
	addresses := make([]netip.AddrPort, n)
	for i := range addresses {
		b := id[idAddresses+i*addressSize:][:addressSize]
		var ip netip.Addr
		switch family := binary.LittleEndian.Uint16(b); family {
		case 4:
			ip = netip.AddrFrom4([4]byte(b[8:12]))
		case 6:
			ip = netip.AddrFrom16([16]byte(b[8:24]))
		default:
			return nil, fmt.Errorf("unique id: address %d is of family %d", i, family)
		}
		addresses[i] = netip.AddrPortFrom(ip, binary.LittleEndian.Uint16(b[2:]))
	}
	return addresses, nil
}

// String is the id as 256 hexadecimal digits.
func (id UniqueID) String() string { return hex.EncodeToString(id[:]) }

// ParseUniqueID reads what String wrote.
func ParseUniqueID(text string) (UniqueID, error) {
	var id UniqueID
	if len(text) != 2*len(id) {
		return id, fmt.Errorf("unique id: %d characters, not %d hexadecimal digits", len(text), 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return UniqueID{}, fmt.Errorf("unique id: %w", err)
	}
	if _, err := id.Addresses(); err != nil {
		return UniqueID{}, err
	}
	return id, nil
}
