package transport

import (
	"errors"
	"reflect"
	"slices"
	"testing"
)

func TestSelect(t *testing.T) {
	const all = Map | LoadStore | RMA | Atomics | GPUInitiated
	r := Reachability{
		{all, all &^ Atomics, 0, Map, 0},            // p2p
		{RMA | AMO, RMA | AMO, RMA | AMO, Write, 0}, // ibgda
		{RMA, RMA, RMA, RMA, 0},                     // proxy
	}
	got := Select(r, 5)
	want := Choice{RMA: []int{0, 0, 1, 2, None}, AMO: []int{0, 1, 1, None, None}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("chosen %+v, want %+v", got, want)
	}
	if row := r.Row(); !slices.Equal(row, []uint32{0b011111, 0b011101, 0b011100, 0b010000, 0}) {
		t.Errorf("row %b", row)
	}
	m := Matrix{{3, 1, 0}, {3, 3, 1}, {2, 3, 3}}
	if got := m.Unreachable(9); !slices.Equal(got, []string{"0->2", "2->0"}) {
		t.Errorf("unreachable: %v", got)
	}
	if s := (Map | Write).String(); s != "map|write" {
		t.Errorf("%q", s)
	}
	if Capability(0).String() != "none" || Device.String() != "device" || Kind(9).String() != "Kind(9)" {
		t.Error("names")
	}
}

func TestPeerInfo(t *testing.T) {
	p := PeerInfo{PE: 7, Host: 1 << 63, Network: 5, PID: 9, UID: 1000, Kind: Host, Ordinal: -1, GPU: [16]byte{1, 15: 2}, PCI: 0x10200, VMM: true}
	b := p.Append([]byte("before"))
	got, rest, err := ParsePeerInfo(append(b[6:], "after"...))
	if err != nil || got != p || string(rest) != "after" {
		t.Errorf("%+v, %q, %v", got, rest, err)
	}
	if got.HasGPU() {
		t.Error("it has a GPU")
	}
	if _, _, err := ParsePeerInfo(b[6:20]); !errors.Is(err, ErrBlob) {
		t.Errorf("a short one: %v", err)
	}
	if me := ThisProcess(); me.Host == 0 || me.Network == 0 || me.PID == 0 || me.HasGPU() {
		t.Errorf("this process: %+v", me)
	}
}

func FuzzPeerInfo(f *testing.F) {
	f.Add((&PeerInfo{PE: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, rest, err := ParsePeerInfo(b)
		if err != nil {
			return
		}
		if again, _, err := ParsePeerInfo(p.Append(nil)); err != nil || again != p || len(rest) != len(b)-peerInfoBytes {
			t.Errorf("%+v reads back as %+v, %v", p, again, err)
		}
	})
}
