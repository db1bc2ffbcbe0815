package bootstrap

import (
	"net/netip"
	"strings"
	"testing"
)

var someAddresses = []netip.AddrPort{
	netip.MustParseAddrPort("127.0.0.1:4711"), netip.MustParseAddrPort("[fd00::17]:65535"), netip.MustParseAddrPort("10.1.2.3:1"),
}

func TestUniqueID(t *testing.T) {
	secret := newSecret()
	id, err := newID(secret, someAddresses)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseUniqueID(id.String())
	if err != nil || again != id {
		t.Fatalf("read again: %v", err)
	}
	got, err := again.Addresses()
	if err != nil || len(got) != len(someAddresses) || again.secret() != secret {
		t.Fatalf("%v, %v", got, err)
	}
	for i := range got {
		if got[i] != someAddresses[i] {
			t.Errorf("address %d is %v, was %v", i, got[i], someAddresses[i])
		}
	}
	if other := newSecret(); other == secret {
		t.Error("two secrets are the same")
	}
	for _, n := range []int{0, maxAddresses + 1} {
		if _, err := newID(secret, make([]netip.AddrPort, n)); err == nil {
			t.Errorf("an id with %d addresses", n)
		}
	}

	// Any change of one bit is seen.
	for i := range 8 * len(id) {
		changed := id
		changed[i/8] ^= 1 << (i % 8)
		if _, err := changed.Addresses(); err == nil {
			t.Errorf("bit %d changed, and nobody notices", i)
		}
	}
	for text, bad := range map[string]string{
		"characters": id.String()[1:],
		"invalid":    "x" + id.String()[1:],
		"all zero":   strings.Repeat("0", 256),
		"version 2":  "02" + id.String()[2:],
		"damaged":    id.String()[:255] + string('0'+(id.String()[255]-'0'+1)%8),
	} {
		if _, err := ParseUniqueID(bad); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want %q: %v", text, err)
		}
	}
}
