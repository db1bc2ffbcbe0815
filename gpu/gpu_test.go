package gpu

import (
	"errors"
	"strings"
	"testing"
)

func TestUUID(t *testing.T) {
	const text = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	u, err := ParseUUID(text)
	if err != nil || u.String() != text {
		t.Errorf("%v, %v", u, err)
	}
	if u3, err := ParseUUID("MIG" + text[3:]); err != nil || u3 != u {
		t.Errorf("of a MIG instance: %v, %v", u3, err)
	}
	if u2, err := ParseUUID("00112233445566778899AABBCCDDEEFF"); err != nil || u2 != u {
		t.Errorf("without prefix and dashes: %v, %v", u2, err)
	}
	for _, s := range []string{"", "GPU-", text[:39], text + "0", "GPU-0011223g-4455-6677-8899-aabbccddeeff",
		text + "-" + text} {
		if u, err := ParseUUID(s); err == nil {
			t.Errorf("ParseUUID(%q) = %v", s, u)
		}
	}
}

func TestSelect(t *testing.T) {
	devices := []Device{
		{Index: 0, UUID: UUID{0xaa, 1}, Node: "195:0"}, {Index: 1, UUID: UUID{0xaa, 2}, Node: "195:1"},
		{Index: 4, UUID: UUID{0xbb, 3}, Partitioned: true},
		{Index: 7, UUID: UUID{0xbb, 4}, Parent: UUID{0xbb, 3}, ParentIndex: 4},
		{Index: 9, UUID: UUID{0xcc, 5}},
	}
	for _, c := range []struct {
		tokens []string
		want   []int
		err    error
	}{
		{nil, nil, nil},
		{[]string{"0"}, []int{0}, nil},
		{[]string{"4", "0"}, []int{4, 0}, nil},
		{[]string{devices[1].UUID.String()}, []int{1}, nil},
		{[]string{"gpu-BB"}, []int{4}, nil},
		{[]string{"mig-bb"}, []int{7}, nil},
		{[]string{"4:7", "195:1"}, []int{7, 1}, nil},
		{[]string{"7"}, nil, ErrUnknownDevice},
		{[]string{"4:8"}, nil, ErrUnknownDevice},
		{[]string{"195:2"}, nil, ErrUnknownDevice},
		{[]string{"01"}, nil, ErrUnknownDevice},
		{[]string{"1", "195:1"}, nil, ErrTwice},
		{[]string{" 1 "}, []int{1}, nil},
		{[]string{"GPU-aa"}, nil, ErrUnknownDevice},
		{[]string{"2"}, nil, ErrUnknownDevice},
		{[]string{"-1"}, nil, ErrUnknownDevice},
		{[]string{"GPU-"}, nil, ErrUnknownDevice},
		{[]string{""}, nil, ErrUnknownDevice},
		{[]string{"99999999999999999999"}, nil, ErrUnknownDevice},
		{[]string{"0", devices[0].UUID.String()}, nil, ErrTwice},
	} {
		got, err := Select(devices, c.tokens)
		if !errors.Is(err, c.err) {
			t.Errorf("Select(%q): %v, want %v", c.tokens, err, c.err)
			continue
		}
		if len(got) != len(c.want) {
			t.Errorf("Select(%q) = %v, want %v", c.tokens, got, c.want)
			continue
		}
		for i, index := range c.want {
			if got[i].Index != index {
				t.Errorf("Select(%q)[%d] = %v, want device %d", c.tokens, i, got[i], index)
			}
		}
	}
}

func TestKeyAndUsable(t *testing.T) {
	whole := Device{UUID: UUID{1}, Node: "195:3", Partitioned: true}
	part := Device{UUID: UUID{2}, Parent: whole.UUID}
	if whole.Key() != "195:3" || whole.MIG() || part.Key() != "MIG-02000000-0000-0000-0000-000000000000" ||
		!part.MIG() {
		t.Errorf("keys %q and %q", whole.Key(), part.Key())
	}
	if u, err := ParseUUID(part.Identity()); err != nil || u != part.UUID {
		t.Errorf("%q is read as %v, %v", part.Identity(), u, err)
	}
	if usable := Usable([]Device{whole, part}); len(usable) != 1 || usable[0] != part {
		t.Errorf("usable: %v", usable)
	}
}

// Find understands every name that is printed, and says what there is where it finds none or several.
func TestFind(t *testing.T) {
	devices := []Names{
		{Ordinal: "0", UUID: "GPU-a925822c-0000-0000-0000-000000000000", Node: "195:0"},
		{Ordinal: "1", UUID: "GPU-a92580ff-0000-0000-0000-000000000000", Node: "195:1"},
		{Ordinal: "1:0", UUID: "MIG-b0000000-0000-0000-0000-000000000000"},
		{Ordinal: "0", UUID: "GPU-c0000000-0000-0000-0000-000000000000"}, // a software GPU beside
	}
	for token, want := range map[string]int{
		"195:0": 0, "1": 1, "1:0": 2, "GPU-a925822c": 0, "gpu-A925822": 0, "GPU-a92580ff-0000-0000-0000-000000000000": 1,
		"mig-b": 2, "GPU-c": 3,
	} {
		if got, err := Find(devices, token); err != nil || got != want {
			t.Errorf("Find(%q) = %d, %v; want %d", token, got, err, want)
		}
	}
	for token, text := range map[string]string{
		"": "devices are 0 (GPU-a925822c), 1 (GPU-a92580ff), 1:0 (MIG-b0000000), 0 (GPU-c0000000)", "2": `device "2": no such`,
		"GPU-": "no such", "GPU": "no such", "0": "2 have that index", "GPU-a925": "2 have a UUID that begins so",
		"GPU-a925822c-0000-0000-0000-0000000000000": "no such", "195:": "no such",
	} {
		if got, err := Find(devices, token); !errors.Is(err, ErrUnknownDevice) || !strings.Contains(err.Error(), text) {
			t.Errorf("Find(%q) = %d, %v; want %q", token, got, err, text)
		}
	}
	for n, text := range []string{"there is none", "the only one is 0 (GPU-a925822c)"} {
		if _, err := Find(devices[:n], "x"); err == nil || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("of %d devices: %v", n, err)
		}
	}
}
