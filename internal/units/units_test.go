package units

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		in   string
		want uint64
	}{
		{"0", 0}, {"1", 1}, {"512B", 512}, {"1k", 1 << 10}, {"1KiB", 1 << 10}, {"1kb", 1000},
		{"8GiB", 8 << 30}, {"8G", 8 << 30}, {"8g", 8 << 30}, {"8GB", 8e9}, {"8 GiB", 8 << 30}, {" 8gib ", 8 << 30},
		{"1.5GiB", 3 << 29}, {"0.5", 0}, {"2.25M", 2359296}, {"3TiB", 3 << 40}, {"1.0000000000000000001G", 1 << 30},
		{"18446744073709551615", 1<<64 - 1}, {"16777215.9T", 18446744073709551615 - 109951162777},
	} {
		got, err := ParseSize(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", c.in, got, err, c.want)
		}
	}
}

func TestParseSizeErrors(t *testing.T) {
	for _, c := range []struct {
		in   string
		want error
	}{
		{"", ErrSyntax}, {"G", ErrSyntax}, {"-1G", ErrSyntax}, {"+1G", ErrSyntax}, {"1.G", ErrSyntax}, {".5G", ErrSyntax},
		{"1e9", ErrSyntax}, {"0x10", ErrSyntax}, {"8GiBs", ErrSyntax}, {"8Gi", ErrSyntax}, {"1.2.3G", ErrSyntax}, {"eight", ErrSyntax},
		{"10%", ErrSyntax}, {"1 2G", ErrSyntax}, {"٣G", ErrSyntax},
		{"16777216T", ErrRange}, {"18446744073709551615k", ErrRange},
	} {
		got, err := ParseSize(c.in)
		if !errors.Is(err, c.want) {
			t.Errorf("ParseSize(%q) = %d, %v; want %v", c.in, got, err, c.want)
			continue
		}
		if !strings.Contains(err.Error(), c.in) {
			t.Errorf("ParseSize(%q): %q does not name the token", c.in, err)
		}
	}
	if _, err := ParseSize("99999999999999999999"); err == nil {
		t.Error("a number above 64 bits is accepted")
	}
}

func TestParsePercent(t *testing.T) {
	for _, c := range []struct {
		in   string
		want uint32
	}{
		{"25", 2500}, {"25%", 2500}, {" 25 % ", 2500}, {"12.5%", 1250}, {"0.01", 1}, {"100", Whole}, {"100.00%", Whole}, {"33.33", 3333}, {"1.500", 150},
	} {
		got, err := ParsePercent(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParsePercent(%q) = %d, %v; want %d", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct {
		in   string
		want error
	}{
		{"", ErrSyntax}, {"%", ErrSyntax}, {"-5", ErrSyntax}, {"a", ErrSyntax}, {"5%%", ErrSyntax}, {"0.001", ErrSyntax}, {"5G", ErrSyntax}, {"1e1", ErrSyntax},
		{"0", ErrRange}, {"0.00%", ErrRange}, {"101", ErrRange}, {"100.01", ErrRange},
	} {
		got, err := ParsePercent(c.in)
		if !errors.Is(err, c.want) {
			t.Errorf("ParsePercent(%q) = %d, %v; want %v", c.in, got, err, c.want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for _, c := range []struct {
		in   uint64
		want string
	}{
		{0, "0 B"}, {1, "1 B"}, {1023, "1023 B"}, {1024, "1 KiB"}, {1536, "1.5 KiB"}, {5 << 29, "2.5 GiB"}, {16 << 30, "16 GiB"},
		{1<<20 - 1, "1 MiB"}, {1<<20 - 52, "1023.9 KiB"}, {1<<30 - 1, "1 GiB"}, {300 << 20, "300 MiB"}, {143771 << 20, "140.4 GiB"}, {1<<64 - 1, "16777216 TiB"},
	} {
		if got := FormatSize(c.in); got != c.want {
			t.Errorf("FormatSize(%d) = %q, want %q", c.in, got, c.want)
		}
	}
	if got := FormatPercent(1250); got != "12.5" {
		t.Errorf("FormatPercent(1250) = %q", got)
	}
}

func TestBare(t *testing.T) {
	for text, bare := range map[string]bool{
		"8": true, " 8 ": true, "1.5": true, "0": true, "8B": false, "8 B": false, "8GiB": false, "": false, "B": false, "GiB": false,
		"195:0": false, "-8": false,
	} {
		if Bare(text) != bare {
			t.Errorf("Bare(%q) is %v", text, !bare)
		}
	}
	for text, guess := range map[string]string{
		"8": "8GiB? bytes are written 8B", "1.5": "1.5GiB? bytes are written 1.5B", "8192": "8192MiB? bytes are written 8192B",
		"8589934592": "8589934592B, if it is bytes", "much": "sizes look like 8GiB, 512MiB or 1.5G",
	} {
		if got := Guess(text); got != guess {
			t.Errorf("Guess(%q) is %q, want %q", text, got, guess)
		}
	}
	for word, unit := range map[string]bool{"GiB": true, "g": true, "%": true, "": false, "count=3": false, "8": false} {
		if IsUnit(word) != unit {
			t.Errorf("IsUnit(%q) is %v", word, !unit)
		}
	}
}

// FuzzParseSize: a value or an error that names the token, never both; what FormatSize writes reads back within its precision.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8GiB", "1.5g", "", "16777216T", "-1", "9 9", "1.99999999999999999999999k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			if n != 0 {
				t.Fatalf("ParseSize(%q) = %d and %v", s, n, err)
			}
			return
		}
		if n > 1<<63 {
			return // may round up beyond what 64 bits hold
		}
		back, err := ParseSize(FormatSize(n))
		if err != nil {
			t.Fatalf("ParseSize(FormatSize(%d)): %v", n, err)
		}
		if difference := max(back, n) - min(back, n); difference > n/20+1 {
			t.Fatalf("%d is written %q, read %d", n, FormatSize(n), back)
		}
	})
}

func FuzzParsePercent(f *testing.F) {
	for _, s := range []string{"25", "12.5%", "", "100.01", "0.001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePercent(s)
		if err != nil {
			return
		}
		if p < 1 || p > Whole {
			t.Fatalf("ParsePercent(%q) = %d", s, p)
		}
		if back, err := ParsePercent(FormatPercent(p)); err != nil || back != p {
			t.Fatalf("%q is %d, written %q, read %d, %v", s, p, FormatPercent(p), back, err)
		}
	})
}
