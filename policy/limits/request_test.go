package limits

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/internal/list"
)

func pointer[T any](v T) *T { return &v }

// What is asked for as a value and what is written as text is the same.
func TestRequestIsWhatTextSays(t *testing.T) {
	set := list.Of(1, 2, 5)
	for _, c := range []struct {
		request Request
		text    []Assignment
	}{
		{Request{}, nil},
		{Request{Devices: []string{uuidA}, Limits: Limits{MemoryMax: AtMost(2 << 30), MemoryHigh: AtMost(1 << 30)}},
			[]Assignment{{"memory.max", "1:0 2GiB"}, {"memory.high", "1:0 1GiB"}}},
		{Request{Devices: []string{uuidA, uuidB}, MemoryPart: pointer(uint32(2500)), HostMax: AtMost(1 << 20), Gang: "g"},
			[]Assignment{{"memory.max", "1:0 2GiB\n1:1 20GiB"}, {"host.max", "1MiB"}, {"gang", "g"}}},
		{Request{Devices: []string{uuidB}, Limits: Limits{ComputeMax: pointer(uint32(2550)), ComputeMin: pointer(uint32(1000)),
			Weight: 300, Priority: pointer(High), Count: pointer(33)}},
			[]Assignment{{"compute.max", "1:1 25.5%"}, {"compute.min", "1:1 10%"}, {"lgpu.weight", "1:1 300"},
				{"lgpu.priority", "1:1 high"}, {"lgpu", "1:1 count=33"}}},
		{Request{Devices: []string{uuidA}, Limits: Limits{List: &set, Exclusive: true}}, []Assignment{{"lgpu", "1:0 list=1-2,5 exclusive=1"}}},
		{Request{Devices: []string{uuidA}, Limits: Limits{Follow: FollowDefault}}, []Assignment{{"lgpu", "1:0 default"}}},
		{Request{Devices: []string{uuidB}, Limits: Limits{ComputeMin: pointer(uint32(0))}}, []Assignment{{"compute.min", "1:1 0"}}},
	} {
		values, texts := newTree(t, Options{}), newTree(t, Options{})
		if _, err := values.Create(CreateSpec{Path: "/x", Request: c.request}); err != nil {
			t.Errorf("%+v: %v", c.request, err)
			continue
		}
		if _, err := texts.Create(CreateSpec{Path: "/x", Writes: c.text}); err != nil {
			t.Fatal(err)
		}
		if got, want := values.State(), texts.State(); !reflect.DeepEqual(got, want) {
			t.Errorf("%v is\n%+v, and %+v is\n%+v", c.text, want, c.request, got)
		}
		if n, _ := values.Directory("/x"); values.Differs(n.ID, c.request) != "" {
			t.Errorf("%+v differs from itself: %s", c.request, values.Differs(n.ID, c.request))
		}
	}
}

// A refused request names the file that it is about, and leaves nothing behind.
func TestRequestRefused(t *testing.T) {
	uncounted := machine()
	uncounted[2].Uncounted = true
	set := list.Of(1)
	for _, c := range []struct {
		request Request
		file    string
		errno   syscall.Errno
	}{
		{Request{Devices: []string{uuidA}, Limits: Limits{MemoryMax: AtMost(9 << 30)}}, "memory.max", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{MemoryMax: AtMost(4)}}, "memory.max", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{MemoryHigh: AtMost(9 << 30)}}, "memory.high", syscall.ERANGE},
		{Request{Devices: []string{uuidB, uuidA}, MemoryPart: pointer(uint32(math.MaxUint32))}, "memory.max", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, MemoryPart: pointer(uint32(0))}, "memory.max", syscall.ERANGE},
		{Request{HostMax: AtMost(1)}, "host.max", syscall.ERANGE},
		{Request{Gang: "/"}, "gang", syscall.EINVAL},
		{Request{Devices: []string{uuidA}, Limits: Limits{ComputeMax: pointer(uint32(0))}}, "compute.max", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{ComputeMax: pointer(uint32(10001))}}, "compute.max", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{ComputeMin: pointer(uint32(10001))}}, "compute.min", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{ComputeMax: pointer(uint32(100)), ComputeMin: pointer(uint32(200))}},
			"compute.min", syscall.ERANGE},
		{Request{Devices: []string{uuidB}, Limits: Limits{ComputeMin: pointer(uint32(6000))}}, "compute.min", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{Weight: 10001}}, "lgpu.weight", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{Priority: pointer(Priority(9))}}, "lgpu.priority", syscall.EINVAL},
		{Request{Devices: []string{uuidB}, Limits: Limits{Priority: pointer(Latency)}}, "lgpu.priority", syscall.EINVAL},
		{Request{Devices: []string{uuidA}, Limits: Limits{Count: pointer(65)}}, "lgpu", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{Count: pointer(-1)}}, "lgpu", syscall.ERANGE},
		{Request{Devices: []string{uuidA}, Limits: Limits{Exclusive: true}}, "lgpu", syscall.EINVAL},
		{Request{Devices: []string{uuidB}, Limits: Limits{List: &set}}, "lgpu", syscall.EOPNOTSUPP},
		{Request{Devices: []string{uuidC}, Limits: Limits{Count: pointer(1)}}, "lgpu", syscall.ERANGE},
		{Request{Devices: []string{"GPU-9"}}, "", syscall.ENODEV},
	} {
		tr := newTree(t, Options{}, "/g")
		if err := tr.SetDevices(uncounted); err != nil {
			t.Fatal(err)
		}
		for _, w := range []Assignment{{"compute.max", "1:1 50%"}, {"lgpu.priority", "1:1 high"}} {
			if err := tr.Write("/g", w.File, w.Text); err != nil {
				t.Fatal(err)
			}
		}
		before := tr.State()
		_, err := tr.Create(CreateSpec{Path: "/g/x", Request: c.request})
		var e *Error
		if !errors.As(err, &e) || e.File != c.file || e.Errno != c.errno || e.Path != "/g/x" || e.Reason == "" {
			t.Errorf("%+v: %v", c.request, err)
		}
		if !reflect.DeepEqual(tr.State(), before) {
			t.Errorf("%+v changed something", c.request)
		}
	}
}

// A request that differs from what a directory asks for says in which file.
func TestDiffers(t *testing.T) {
	tr := newTree(t, Options{})
	n, err := tr.Create(CreateSpec{Path: "/x", Request: Request{Devices: []string{uuidA}, Limits: Limits{MemoryMax: AtMost(1 << 30)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		request Request
		text    string
	}{
		{Request{}, ""},
		{Request{Gang: "g"}, `no gang, not "g"`},
		{Request{HostMax: AtMost(1 << 20)}, "host.max max, not 1 MiB"},
		{Request{Limits: Limits{MemoryMax: AtMost(2 << 30)}}, "memory.max 1 GiB, not 2 GiB"},
		{Request{Limits: Limits{Weight: 7}}, "memory.max 1 GiB, not max"},
		{Request{Limits: Limits{MemoryMax: AtMost(1 << 30), Weight: 7}}, "lgpu.weight 100, not 7"},
		{Request{Limits: Limits{MemoryMax: AtMost(1 << 30), Count: pointer(3)}}, "lgpu max, not count=3"},
		{Request{Limits: Limits{MemoryMax: AtMost(1 << 30), ComputeMax: pointer(uint32(100))}}, "compute.max max, not 1%"},
		{Request{Limits: Limits{MemoryMax: AtMost(1 << 30), ComputeMin: pointer(uint32(100))}}, "compute.min 0%, not 1%"},
		{Request{Limits: Limits{MemoryMax: AtMost(1 << 30), Priority: pointer(High)}}, "lgpu.priority default, not high"},
	} {
		c.request.Devices = []string{uuidA}
		if got := tr.Differs(n.ID, c.request); got != c.text {
			t.Errorf("%+v: %q, want %q", c.request, got, c.text)
		}
	}
}

func TestBytes(t *testing.T) {
	none, zero, one := Bytes{}, AtMost(0), AtMost(1)
	if none == zero || none.Least(zero) != zero || zero.Least(none) != zero || one.Least(zero) != zero || none.Least(none) != none {
		t.Error("no limit is more than any")
	}
	if one.Plus(one) != AtMost(2) || one.Plus(none) != none || AtMost(math.MaxUint64).Plus(one) != AtMost(math.MaxUint64) {
		t.Error("sums of limits")
	}
	for want, b := range map[string]Bytes{"null": none, "0": zero, "1": one} {
		var back Bytes
		data, err := json.Marshal(b)
		if err != nil || string(data) != want || json.Unmarshal(data, &back) != nil || back != b {
			t.Errorf("%v is %s in JSON, and then %v", b, data, back)
		}
	}
}
