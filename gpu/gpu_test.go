package gpu

import (
	"errors"
	"testing"
)

func TestUUID(t *testing.T) {
	const text = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	u, err := ParseUUID(text)
	if err != nil || u.String() != text {
		t.Errorf("%v, %v", u, err)
	}
	if u2, err := ParseUUID("00112233445566778899AABBCCDDEEFF"); err != nil || u2 != u {
		t.Errorf("without prefix and dashes: %v, %v", u2, err)
	}
	for _, s := range []string{"", "GPU-", text[:39], text + "0", "GPU-0011223g-4455-6677-8899-aabbccddeeff", text + "-" + text} {
		if u, err := ParseUUID(s); err == nil {
			t.Errorf("ParseUUID(%q) = %v", s, u)
		}
	}
}

func TestSelect(t *testing.T) {
	devices := []Device{
		{Index: 0, UUID: UUID{0xaa, 1}}, {Index: 1, UUID: UUID{0xaa, 2}}, {Index: 4, UUID: UUID{0xbb, 3}},
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
