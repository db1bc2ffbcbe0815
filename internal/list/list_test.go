package list

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	inval    = syscall.EINVAL
	rang     = syscall.ERANGE
	overflow = syscall.EOVERFLOW
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text  string
		nbits int
		want  string // as printed
		errno syscall.Errno
	}{
		// Nothing, and separators.
		{"", 16, "", 0}, {"\n", 16, "", 0}, {" , ,\t", 16, "", 0}, {"\x00 5", 16, "", 0},
		{"0", 16, "0", 0}, {"15", 16, "15", 0}, {"0,1", 16, "0-1", 0}, {"0 1", 16, "0-1", 0}, {",,0,,2,,", 16, "0,2", 0},
		{"0\t1\v2\f3\r4\xa06", 16, "0-4,6", 0}, {"\xa00-3\xa0", 16, "0-3", 0}, {"3,1,0-2,2", 16, "0-3", 0}, {"007-0009", 16, "7-9", 0},
		{"\u00a01", 16, "", inval}, // UTF-8's no-break space begins with C2, which is no separator
		// Newlines and NUL.
		{"0\n1", 16, "0", 0}, {"0-3\nrubbish", 16, "0-3", 0}, {"all\n99", 4, "0-3", 0}, {"N\n0", 16, "15", 0}, {"\n0-3", 16, "0-3", 0},
		{"0,\n1", 16, "0-1", 0}, {"0 \n1", 16, "0-1", 0}, {"0-3:1/2\n5", 16, "0,2,5", 0}, {"1\x00rubbish", 16, "1", 0}, {"0-3:1/2\x00x", 16, "0,2", 0},
		// N and all.
		{"N", 16, "15", 0}, {"N", 1, "0", 0}, {"0-N", 16, "0-15", 0}, {"N-N", 16, "15", 0}, {"all", 16, "0-15", 0}, {"ALL", 16, "0-15", 0},
		{"aLl", 16, "0-15", 0}, {"all:1/2", 8, "0,2,4,6", 0}, {"all:0/1", 8, "", 0}, {"0-N:1/N", 5, "0,4", 0}, {"all,all", 3, "0-2", 0},
		{"n", 16, "", inval}, {"N5", 16, "", inval}, {"5N", 16, "", inval}, {"all5", 16, "", inval}, {"al", 16, "", inval}, {"0-all", 16, "", inval},
		{"all-5", 16, "", inval}, {"NN", 16, "", inval}, {"N-5", 16, "", inval}, {"0-N5", 16, "", inval},
		// Patterns.
		{"0-1023:2/256", 1024, "0-1,256-257,512-513,768-769", 0}, {"0-1023:2/256", 256, "", rang}, {"0-15:1/4", 16, "0,4,8,12", 0},
		{"3-9:2/4", 16, "3-4,7-8", 0}, {"0-7:0/4", 16, "", 0}, {"0-6:4/4", 16, "0-6", 0}, {"1-5:3/100", 16, "1-3", 0}, {"2-3:9/9", 16, "2-3", 0},
		{"0-3:1/2N", 16, "0,2,15", 0}, {"0-3:1/2all", 4, "0-3", 0}, {"0-3:1/2,4", 16, "0,2,4", 0}, {"0-3:1/N7", 16, "0,7", 0},
		{"0-3:0/0", 16, "", inval}, {"0-3:3/2", 16, "", inval}, {"0-3:1", 16, "", inval}, {"0-3:", 16, "", inval}, {"0-3:1/", 16, "", inval},
		{"0-3:/2", 16, "", inval}, {"5:1/2", 16, "", inval}, {"N:1/2", 16, "", inval}, {"0-3:1/2-5", 16, "", inval}, {"0-3:1/2:1/2", 16, "", inval},
		{"0-3:1\n/2", 16, "", inval},
		// Grammar.
		{"0-", 16, "", inval}, {"-3", 16, "", inval}, {"0 - 3", 16, "", inval}, {"0-3-5", 16, "", inval}, {"+1", 16, "", inval}, {"0x3", 16, "", inval},
		{"1.5", 16, "", inval}, {"a", 16, "", inval}, {"0;1", 16, "", inval}, {"0-\n3", 16, "", inval}, {"٣", 16, "", inval}, {"1,x,99", 16, "", inval},
		// Numbers.
		{"16", 16, "", rang}, {"0-16", 16, "", rang}, {"4294967294", 16, "", rang}, {"0-4294967294", 16, "", rang}, {"4294967295", 16, "", inval},
		{"0-4294967295", 16, "", inval}, {"0-4294967295:1/2", 16, "", rang}, {"4294967295-4294967295:1/1", 16, "", rang},
		{"4294967296", 16, "", overflow}, {"99999999999999999999999999", 16, "", overflow}, {"0-4294967296", 16, "", overflow},
		{"0-3:4294967296/2", 16, "", overflow}, {"0-3:1/4294967296", 16, "", overflow}, {"0000000000000000000000003", 16, "3", 0},
		{"18446744073709551616", 16, "", overflow}, {"18446744073709551617", 16, "", overflow},
		// Order of errors.
		{"20-18", 16, "", inval}, {"18-20", 16, "", rang}, {"20-30:1/0", 16, "", inval}, {"20-30:5/4", 16, "", inval}, {"4294967296x", 16, "", overflow},
		{"x4294967296", 16, "", inval}, {"20,x", 16, "", rang}, {"x,20", 16, "", inval}, {"5-4294967296:", 16, "", overflow}, {"3-1:1/4294967296", 16, "", overflow},
		{"3-1:x", 16, "", inval}, {"0-4294967295x", 16, "", inval},
		// No bits at all: bit N is number 4294967295.
		{"", 0, "", 0}, {"0", 0, "", rang}, {"all", 0, "", inval}, {"N", 0, "", inval}, {"all:1/2", 0, "", rang},
	} {
		got, err := Parse(c.text, c.nbits)
		var e *Error
		switch {
		case c.errno == 0 && err != nil:
			t.Errorf("Parse(%q, %d): %v", c.text, c.nbits, err)
		case c.errno != 0 && (!errors.As(err, &e) || !errors.Is(err, c.errno) || e.Errno != c.errno):
			t.Errorf("Parse(%q, %d) = %q, %v; want %v", c.text, c.nbits, got, err, c.errno)
		case c.errno != 0 && (e.Token == "" || e.Reason == "" || e.Offset > len(c.text) || !strings.Contains(e.Error(), e.Reason)):
			t.Errorf("Parse(%q, %d): error %+v does not say what is wrong", c.text, c.nbits, *e)
		case got.String() != c.want:
			t.Errorf("Parse(%q, %d) = %q, want %q", c.text, c.nbits, got, c.want)
		}
	}
}

func TestErrorNamesTheToken(t *testing.T) {
	for _, c := range []struct{ text, token string }{
		{"0-3,8-20", "8-20"}, {"0,7-5,9", "7-5"}, {"1,4294967296", "4294967296"}, {"0-3,x", "x"}, {"0-", "end of text"}, {"0-7:3/2 ", "0-7:3/2"},
	} {
		_, err := Parse(c.text, 16)
		var e *Error
		if !errors.As(err, &e) || e.Token != c.token {
			t.Errorf("Parse(%q): %v; want token %q", c.text, err, c.token)
		} else if c.token != "end of text" && !strings.HasPrefix(c.text[e.Offset:], c.token) {
			t.Errorf("Parse(%q): offset %d is not where %q is", c.text, e.Offset, c.token)
		}
	}
}

// members is the slow form of a set that operations are compared with.
func members(s Set) map[int]bool {
	m := map[int]bool{}
	for bit := range MaxBits + 64 {
		if s.Has(bit) {
			m[bit] = true
		}
	}
	return m
}

func random(r *rand.Rand) Set {
	var bits []int
	top := []int{1, 63, 64, 65, 200, MaxBits}[r.IntN(6)]
	for range r.IntN(80) {
		first := r.IntN(top)
		for bit := first; bit < min(first+1+r.IntN(70), top); bit++ {
			bits = append(bits, bit)
		}
	}
	return Of(bits...)
}

func TestOperations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		a, b := random(r), random(r)
		inA, inB := members(a), members(b)
		check := func(what string, got Set, want func(bit int) bool) {
			t.Helper()
			n := 0
			for bit := range MaxBits + 64 {
				if got.Has(bit) != want(bit) {
					t.Fatalf("%q %s %q: bit %d is wrong", a, what, b, bit)
				}
				if want(bit) {
					n++
				}
			}
			if got.Count() != n || got.Empty() != (n == 0) || len(slices.Collect(got.All())) != n {
				t.Fatalf("%q %s %q: Count is %d, Empty %v, want %d bits", a, what, b, got.Count(), got.Empty(), n)
			}
		}
		check("and", a.And(b), func(i int) bool { return inA[i] && inB[i] })
		check("or", a.Or(b), func(i int) bool { return inA[i] || inB[i] })
		check("without", a.Without(b), func(i int) bool { return inA[i] && !inB[i] })
		n := r.IntN(a.Count() + 3)
		lowest := slices.Collect(a.All())
		lowest = lowest[:min(n, len(lowest))]
		check("lowest", a.Lowest(n), func(i int) bool { return slices.Contains(lowest, i) })
		check("itself", a, func(i int) bool { return inA[i] })
		if a.Equal(b) != (a.String() == b.String()) || !a.Equal(Of(slices.Collect(a.All())...)) {
			t.Fatalf("%q equal %q: %v", a, b, a.Equal(b))
		}
		if a.Overlaps(b) == a.And(b).Empty() || a.In(b) != a.Without(b).Empty() || !a.And(b).In(a) {
			t.Fatalf("%q and %q: Overlaps %v, In %v", a, b, a.Overlaps(b), a.In(b))
		}
	}
	if !Upto(0).Empty() || !Upto(-1).Empty() || Upto(64).String() != "0-63" || Upto(65).Count() != 65 || Of(-1, 3).String() != "3" {
		t.Error("Upto or Of")
	}
	if Upto(64).Has(-1) || Upto(64).Has(64) || Upto(10).Lowest(-1).Count() != 0 {
		t.Error("bits outside of a set")
	}
}

func TestJSON(t *testing.T) {
	type holder struct {
		Bits Set  `json:"bits,omitzero"`
		Some *Set `json:"some,omitempty"`
	}
	some := Of(1, 2, 9)
	text, err := json.Marshal(holder{Bits: Upto(4), Some: &some})
	if err != nil || string(text) != `{"bits":"0-3","some":"1-2,9"}` {
		t.Fatalf("%s, %v", text, err)
	}
	var back holder
	if err := json.Unmarshal(text, &back); err != nil || !back.Bits.Equal(Upto(4)) || !back.Some.Equal(some) {
		t.Fatalf("%+v, %v", back, err)
	}
	if text, _ := json.Marshal(holder{}); string(text) != `{}` {
		t.Errorf("an empty set is written: %s", text)
	}
	if err := json.Unmarshal([]byte(`{"bits":"0-4096"}`), &back); !errors.Is(err, rang) || !back.Bits.Equal(Upto(4)) {
		t.Errorf("%+v, %v", back, err)
	}
}

// slow is the grammar once more, written for no other virtue than that it can be compared with the reference line by
// line: it cuts the text into pieces by regular means, and has bits one at a time.
func slow(text string, nbits int) (map[int]bool, syscall.Errno) {
	bits := map[int]bool{}
	last := (nbits - 1) & math.MaxUint32
	text, _, _ = strings.Cut(text, "\x00")
	isSeparator := func(c byte) bool { return strings.IndexByte(", \t\n\v\f\r\xa0", c) >= 0 }
	number := func() (n int, errno syscall.Errno) {
		if strings.HasPrefix(text, "N") {
			text = text[1:]
			return last, 0
		}
		end := 0
		for end < len(text) && strings.IndexByte("0123456789", text[end]) >= 0 {
			end++
		}
		if end == 0 {
			return 0, inval
		}
		token := strings.TrimLeft(text[:end], "0")
		text = text[end:]
		if len(token) > 10 {
			return 0, overflow
		}
		for _, c := range []byte(token) {
			n = n*10 + int(c-'0')
		}
		if n > math.MaxUint32 {
			return 0, overflow
		}
		return n, 0
	}
	for {
		for text != "" && isSeparator(text[0]) {
			text = text[1:]
		}
		if text == "" {
			return bits, 0
		}
		var errno syscall.Errno
		first, end, pattern, single := 0, last, false, false
		if len(text) >= 3 && strings.EqualFold(text[:3], "all") && text[0] < 0x80 && text[1] < 0x80 && text[2] < 0x80 {
			text = text[3:]
		} else {
			if first, errno = number(); errno != 0 {
				return nil, errno
			}
			end, single = first, true
			if strings.HasPrefix(text, "-") {
				text, single = text[1:], false
				if end, errno = number(); errno != 0 {
					return nil, errno
				}
			}
		}
		used, group := 1, 1
		if !single && strings.HasPrefix(text, ":") {
			pattern = true
			text = text[1:]
			if used, errno = number(); errno != 0 {
				return nil, errno
			}
			if !strings.HasPrefix(text, "/") {
				return nil, inval
			}
			text = text[1:]
			if group, errno = number(); errno != 0 {
				return nil, errno
			}
		} else if text != "" && !isSeparator(text[0]) {
			return nil, inval
		}
		switch {
		case first > end, group == 0, used > group:
			return nil, inval
		case !pattern && end == math.MaxUint32:
			return nil, inval
		case end >= nbits:
			return nil, rang
		}
		for bit := first; bit <= end; bit++ {
			if (bit-first)%group < used {
				bits[bit] = true
			}
		}
		if !pattern && strings.HasPrefix(text, "\n") {
			return bits, 0
		}
	}
}

// compare parses text both ways, and prints and reads again what came out.
func compare(t *testing.T, text string, nbits int) {
	t.Helper()
	got, err := Parse(text, nbits)
	want, errno := slow(text, nbits)
	if errno != 0 {
		if !errors.Is(err, errno) || !got.Empty() {
			t.Fatalf("Parse(%q, %d) = %q, %v; want %v", text, nbits, got, err, errno)
		}
		return
	}
	if err != nil {
		t.Fatalf("Parse(%q, %d): %v; want %d bits", text, nbits, err, len(want))
	}
	if got.Count() != len(want) {
		t.Fatalf("Parse(%q, %d) = %q; want %v", text, nbits, got, want)
	}
	for bit := range want {
		if !got.Has(bit) {
			t.Fatalf("Parse(%q, %d) = %q, without %d", text, nbits, got, bit)
		}
	}
	back, err := Parse(got.String(), nbits)
	if err != nil || !back.Equal(got) {
		t.Fatalf("%q is printed %q and read %q, %v", text, got, back, err)
	}
}

// TestAgainstSlow puts texts together from what matters to the grammar, which random bytes would hardly hit.
func TestAgainstSlow(t *testing.T) {
	pieces := []string{"0", "1", "3", "7", "12", "15", "16", "N", "all", "ALL", "-", "-", ":", "/", ",", " ", "\n", "\xa0", "\x00", "n", "x", "4294967295", "4294967296",
		"0-3", "1-9:2/3", "0-N", "00"}
	r := rand.New(rand.NewPCG(3, 4))
	valid := 0
	for range 60000 {
		var b strings.Builder
		for range 1 + r.IntN(9) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		nbits := []int{0, 1, 2, 8, 16, 64, 100}[r.IntN(7)]
		compare(t, b.String(), nbits)
		if _, err := Parse(b.String(), nbits); err == nil {
			valid++
		}
	}
	if valid < 2000 {
		t.Errorf("only %d texts were lists: the pieces are badly chosen", valid)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "0-3,8", "all:1/2", "0-1023:2/256", "0-3:1/2N", "0\n1", "0-3:1/2\n5", "\xa01", "4294967295", "4294967296", "N-N:1/1", "5N"} {
		f.Add(text, uint16(16))
		f.Add(text, uint16(1024))
	}
	f.Fuzz(func(t *testing.T, text string, nbits uint16) {
		compare(t, text, int(nbits)%(MaxBits+1))
	})
}

// FuzzPrint: any set is read back from what it prints.
func FuzzPrint(f *testing.F) {
	f.Add([]byte{0, 1, 2, 9}, uint16(0))
	f.Add([]byte{0xff, 0xff, 0xff}, uint16(61))
	f.Fuzz(func(t *testing.T, raw []byte, shift uint16) {
		var bits []int
		for i, b := range raw {
			for bit := range 8 {
				if at := i*8 + bit + int(shift)%64; b>>bit&1 != 0 && at < MaxBits {
					bits = append(bits, at)
				}
			}
		}
		set := Of(bits...)
		back, err := Parse(set.String(), MaxBits)
		if err != nil || !back.Equal(set) || back.Count() != len(bits) {
			t.Fatalf("%v is printed %q, read %q, %v", bits, set, back, err)
		}
	})
}
