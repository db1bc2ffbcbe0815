package ibgda

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

func TestDefaultsAreValid(t *testing.T) {
	s, _, err := FromEnvironment(func(string) (string, bool) { return "", false })
	if err != nil || !reflect.DeepEqual(s, Defaults()) {
		t.Fatalf("an empty environment: %+v, %v", s, err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

// The defaults that the help text names are those in force: setting them changes nothing.
func TestHelpNamesTheDefaults(t *testing.T) {
	defaults := map[string]string{}
	for _, v := range Variables() {
		defaults[v.Name] = v.Default
		if v.Help == "" || v.Help[len(v.Help)-1] == '.' {
			t.Errorf("%s: help %q", v.Name, v.Help)
		}
	}
	s, unused, err := FromEnvironment(func(name string) (string, bool) { v, ok := defaults[name]; return v, ok })
	if err != nil || unused != nil || !reflect.DeepEqual(s, Defaults()) {
		t.Errorf("the defaults as an environment: %+v, %v", s, err)
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		environment string // as NAME=value, separated by blanks
		check       func(*Settings) bool
	}{
		{"LSHMEM_QP_DEPTH=256", func(s *Settings) bool { return s.Depth == 256 }},
		{"NVSHMEM_QP_DEPTH=512", func(s *Settings) bool { return s.Depth == 512 }},
		{"NVSHMEM_QP_DEPTH=512 LSHMEM_QP_DEPTH=256", func(s *Settings) bool { return s.Depth == 256 }},
		{"NVSHMEM_IBGDA_NUM_RC_PER_PE=4", func(s *Settings) bool { return s.QueuesPerPE == 4 }},
		{"LSHMEM_QP_BY=warp", func(s *Settings) bool { return s.By == ByWarp }},
		{"NVSHMEM_IBGDA_RC_MAP_BY=sm", func(s *Settings) bool { return s.By == BySM }},
		{"NVSHMEM_IBGDA_NIC_HANDLER=cpu", func(s *Settings) bool { return s.Handler == HandlerHost }},
		{"NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem", func(s *Settings) bool { return s.Queues == QueuesHost }},
		{"NVSHMEM_REMOTE_TRANSPORT=none", func(s *Settings) bool { return s.NIC == None }},
		{"NVSHMEM_REMOTE_TRANSPORT=none LSHMEM_NIC=host", func(s *Settings) bool { return s.NIC == Host }},
		{"NVSHMEM_REMOTE_TRANSPORT=ibrc", func(s *Settings) bool { return s.NIC == Auto && s.Handler == HandlerHost }},
		{"LSHMEM_HCA_LIST=mlx5_0:1,mlx5_3", func(s *Settings) bool { return reflect.DeepEqual(s.NICs, []string{"mlx5_0:1", "mlx5_3"}) }},
		{"LSHMEM_HCA_LIST=^mlx5_0,mlx5_3", func(s *Settings) bool { return reflect.DeepEqual(s.NICs, []string{"^mlx5_0", "^mlx5_3"}) }},
		{"LSHMEM_IB_ADDR_RANGE=10.1.0.0/16 LSHMEM_IB_ADDR_FAMILY=AF_INET6", func(s *Settings) bool { return s.AddressRange.Bits() == 16 && s.AddressIPv6 }},
		{"LSHMEM_IB_TRAFFIC_CLASS=0x6a", func(s *Settings) bool { return s.TrafficClass == 106 }},
		{"LSHMEM_IB_DISABLE_DMABUF=1", func(s *Settings) bool { return s.NoDMABuf }},
	} {
		environment := map[string]string{}
		for pair := range strings.FieldsSeq(c.environment) {
			name, value, _ := strings.Cut(pair, "=")
			environment[name] = value
		}
		s, unused, err := FromEnvironment(func(name string) (string, bool) { v, ok := environment[name]; return v, ok })
		if err != nil || unused != nil || !c.check(&s) || s.Check() != nil {
			t.Errorf("%s: %+v, %v, %v", c.environment, s, err, s.Check())
		}
	}
	for _, bad := range []string{"LSHMEM_QP_DEPTH=many", "LSHMEM_IB_DISABLE_DMABUF=2", "LSHMEM_NIC_HANDLER=nobody", "LSHMEM_QP_BY=dct", "LSHMEM_REMOTE_TRANSPORT=ucx",
		"LSHMEM_HCA_LIST=mlx5_0,,mlx5_1", "LSHMEM_HCA_LIST=mlx5_[", "LSHMEM_IB_ADDR_RANGE=10.1", "LSHMEM_QP_BATCH=99999999999"} {
		name, value, _ := strings.Cut(bad, "=")
		if _, _, err := FromEnvironment(func(n string) (string, bool) { return value, n == name }); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// NVSHMEM has networks that are not here, and other limits.
	theirs := map[string]string{"NVSHMEM_REMOTE_TRANSPORT": "ucx", "NVSHMEM_QP_DEPTH": "1000", "NVSHMEM_IBGDA_NUM_REQUESTS_IN_BATCH": "64"}
	s, unused, err := FromEnvironment(func(n string) (string, bool) { v, ok := theirs[n]; return v, ok })
	want := Defaults()
	want.Batch = 64
	if err != nil || len(unused) != 2 || !strings.Contains(unused[1].Error(), `NVSHMEM_QP_DEPTH="1000"`) || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v, %v", s, unused, err)
	}
}

// Batch and depth, such that reserve, ready and post cannot deadlock: both edges.
func TestBatchMustFitDepth(t *testing.T) {
	for _, c := range []struct {
		depth, batch int
		ok           bool
	}{
		{128, 32, true}, {128, 33, false}, {128, 64, false}, {1024, 928, true}, {1024, 929, false}, {1024, 0, false}, {128, 1, true},
		{64, 1, false}, {100, 1, false}, {65536, 32, false}, {32768, 32, true},
	} {
		s := Defaults()
		s.Depth, s.Batch = c.depth, c.batch
		if err := s.Check(); (err == nil) != c.ok {
			t.Errorf("depth %d, batch %d: %v", c.depth, c.batch, err)
		}
		if want := c.batch >= 1 && c.batch-1+layout.MaxCall <= c.depth; c.ok && !want {
			t.Errorf("the table is wrong about depth %d, batch %d", c.depth, c.batch)
		}
	}
	s := Defaults()
	s.Depth, s.Batch = 128, 64
	if err := s.Check(); !strings.Contains(err.Error(), "lower the batch to 32") {
		t.Errorf("no advice: %v", err)
	}
	if _, err := openJob(t, 1, withSettings(func(c *Settings) { c.Depth, c.Batch = 128, 64 })); err == nil {
		t.Error("opened with settings that can deadlock")
	}
}

func TestChoiceOfNICs(t *testing.T) {
	const root = "/sys/devices/pci0000:3a"
	gpu := Location{Path: root + "/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", NUMA: 0}
	port := func(name, path string, numa int) nic.Info {
		return nic.Info{Name: name, Port: 1, Path: path, NUMA: numa, Up: true, Link: nic.InfiniBand}
	}
	all := []nic.Info{
		port("mlx5_0", "/sys/devices/pci0000:ba/0000:ba:01.0/0000:bb:00.0", 1),
		port("mlx5_1", root+"/0000:3a:05.0/0000:40:00.0", 0),
		port("mlx5_2", root+"/0000:3a:01.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", 0),
		port("mlx5_3", root+"/0000:3a:01.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0", 0),
		port("mlx5_4", "/sys/devices/pci0000:5a/0000:5a:01.0/0000:5b:00.0", 0),
		port("mlx5_5", root+"/0000:3a:01.0/0000:3b:00.0/0000:3c:03.0/0000:41:00.0", 0),
		port("irdma0", root+"/0000:3a:01.0/0000:3b:00.0/0000:3c:04.0/0000:42:00.0", 0),
	}
	all[5].Up = false
	for _, c := range []struct {
		what  string
		set   func(*Settings)
		place Location
		turn  int
		want  string // names, or what the error has
	}{
		{"below the same switch", func(*Settings) {}, gpu, 0, "mlx5_2 mlx5_3"},
		{"dealt out in turn", func(*Settings) {}, gpu, 1, "mlx5_3 mlx5_2"},
		{"one, dealt out", func(s *Settings) { s.MaxNICs = 1 }, gpu, 3, "mlx5_3"},
		{"in order of distance", func(s *Settings) { s.MaxNICs = 8 }, gpu, 0, "mlx5_2 mlx5_3 mlx5_1 mlx5_4 mlx5_0"},
		{"listed", func(s *Settings) { s.NICs = []string{"mlx5_0", "mlx5_4:1"} }, gpu, 0, "mlx5_4"},
		{"listed with another port", func(s *Settings) { s.NICs = []string{"mlx5_0:2"} }, gpu, 0, "mlx5_0:1 is not listed"},
		{"excluded", func(s *Settings) { s.NICs = []string{"^mlx5_2", "^mlx5_[34]"} }, gpu, 0, "mlx5_1"},
		{"down", func(s *Settings) { s.NICs = []string{"mlx5_5"} }, gpu, 0, "mlx5_5:1 is down"},
		{"another prefix", func(s *Settings) { s.Prefix = "irdma" }, gpu, 0, "irdma0"},
		{"a GPU nobody knows", func(s *Settings) { s.MaxNICs = 1 }, Location{NUMA: -1}, 4, "mlx5_4"},
	} {
		s := Defaults()
		c.set(&s)
		chosen, err := choose(&s, all, c.place, c.turn)
		if err != nil {
			if !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.what, err)
			}
			continue
		}
		var names []string
		for _, n := range chosen {
			names = append(names, n.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %s, expected %s", c.what, got, c.want)
		}
	}
	s := Defaults()
	if _, err := choose(&s, nil, gpu, 0); !errors.Is(err, nic.ErrNoDevice) {
		t.Errorf("none: %v", err)
	}
}

func TestLocationOfAGPU(t *testing.T) {
	sysfs := t.TempDir()
	device := filepath.Join(sysfs, "devices/pci0001:3a/0001:3b:1f.0")
	links := filepath.Join(sysfs, "bus/pci/devices")
	if err := errors.Join(os.MkdirAll(device, 0o755), os.MkdirAll(links, 0o755), os.WriteFile(filepath.Join(device, "numa_node"), []byte("1\n"), 0o644),
		os.Symlink("../../../devices/pci0001:3a/0001:3b:1f.0", filepath.Join(links, "0001:3b:1f.0"))); err != nil {
		t.Fatal(err)
	}
	resolved, err := filepath.EvalSymlinks(device)
	if err != nil {
		t.Fatal(err)
	}
	if p := locationOf(sysfs, 1<<16|0x3b<<8|0x1f); p != (Location{Path: resolved, NUMA: 1}) {
		t.Errorf("%+v", p)
	}
	if p := locationOf(sysfs, 0x3c<<8); p != (Location{NUMA: -1}) {
		t.Errorf("a device that is not there: %+v", p)
	}
}

func helloOf(software int) *hello {
	h := &hello{Provider: "mlx5", HeapBase: 1 << 47, NICs: 2, KeyShift: 29}
	for i := range 3 {
		h.Queues = append(h.Queues, nic.Endpoint{Number: uint32(0xfffffe + i%2), Link: nic.Ethernet, LID: 0xffff, MTU: 4096, GID: [16]byte{15: byte(i)},
			Software: make([]byte, software*i)})
		if software*i == 0 {
			h.Queues[i].Software = nil
		}
	}
	return h
}

func TestBlobsSurviveTheWay(t *testing.T) {
	for _, software := range []int{0, 1, nic.MaxSoftware / 2} {
		h := helloOf(software)
		got, err := parseHello(h.append(nil))
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
		b := h.append(nil)
		for n := range len(b) {
			if _, err := parseHello(b[:n]); !errors.Is(err, transport.ErrBlob) {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
		}
	}
	o := &offer{Offset: 1 << 29, Bytes: 1 << 30, Keys: []uint32{1, 0xffffffff}}
	got, err := parseOffer(o.append(nil))
	if err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("%+v became %+v, %v", o, got, err)
	}
	b := o.append(nil)
	for n := range len(b) {
		if _, err := parseOffer(b[:n]); !errors.Is(err, transport.ErrBlob) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	b[4]++
	if _, err := parseOffer(b); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("another build's blob: %v", err)
	}
}

// Whatever a peer sends is an error or a value, and a value means the same bytes.
func FuzzEndpoints(f *testing.F) {
	f.Add(helloOf(0).append(nil))
	f.Add(helloOf(20).append(nil))
	f.Add([]byte("SPE1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err == nil && h == nil {
			t.Fatalf("%+v and %v", h, err)
		}
		if err == nil && len(h.append(nil)) != len(b) {
			t.Fatalf("%d bytes became %+v", len(b), h)
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add((&offer{Bytes: 1, Keys: []uint32{1}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := parseOffer(b); err == nil && string(o.append(nil)) != string(b) {
			t.Fatalf("%d bytes became %+v", len(b), o)
		}
	})
}
