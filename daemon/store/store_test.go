package store

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// TestMain makes the test binary the writer that TestKilledInTheMiddle kills.
func TestMain(m *testing.M) {
	if path := os.Getenv("STORE_TEST_WRITER"); path != "" {
		write(path)
		return
	}
	os.Exit(m.Run())
}

// stateOf is a state that follows from n: the tree has n%50 directories whose Gang says n.
func stateOf(n uint64) limits.State {
	s := limits.State{Version: 1, LastID: n, Directories: []limits.DirectoryState{{ID: 1, Path: "/"}}}
	for i := range n % 50 {
		max := n << 20
		s.Directories = append(s.Directories, limits.DirectoryState{ID: i + 2, Path: fmt.Sprintf("/n%02d", i), Gang: strconv.FormatUint(n,
			10), HostMax: limits.AtMost(max)})
	}
	return s
}

func write(path string) {
	s, err := Open(path)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for n := s.State().Tree.LastID + 1; ; n++ {
		err := s.SaveTree(stateOf(n))
		if err == nil {
			err = s.SaveLgpu(Lgpu{ID: n % 7, Sim: strconv.FormatUint(n, 10)})
		}
		if err == nil && n%3 == 0 {
			err = s.DeleteLgpu(n % 7)
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.State(); got.Starts != 1 || len(got.Tree.Directories) != 0 || len(got.Lgpus) != 0 {
		t.Errorf("a new file holds %+v", got)
	}
	lgpus := []Lgpu{
		{
			ID: 3, Created: time.Unix(5, 6).UTC(), Sim: "1x16GiB", Devices: []gpu.UUID{{1},
				{2}}, Spatial: true, Active: true,
			Launchers: []Launcher{{PID: 4, Start: 5, Boot: "b", UID: 6}},
		},
		{ID: 1 << 60},
	}
	for _, l := range append(lgpus, Lgpu{ID: 9}) {
		if err := s.SaveLgpu(l); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []uint64{30, 7} { // fewer directories the second time
		if err := s.SaveTree(stateOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	energy := []Energy{
		{Devices: []DeviceEnergy{{Device: gpu.UUID{1}, Energy: 1 << 50, Idle: 75_000}}},
		{ID: 1 << 60, Devices: []DeviceEnergy{{Device: gpu.UUID{1}, Energy: 2}, {Device: gpu.UUID{2}, Energy: 3}}},
	}
	if err := s.SaveEnergy(append(energy, Energy{ID: 9, Devices: energy[0].Devices})); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveEnergy([]Energy{{ID: 9}, {ID: 10}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.DeleteLgpu(9), s.DeleteLgpu(1000), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveTree(stateOf(1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("save after close: %v", err)
	}
	s, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, want := s.State(), (State{Starts: 2, Tree: stateOf(7), Lgpus: lgpus, Energy: energy}); !reflect.DeepEqual(got, want) {
		t.Errorf("holds %+v,\nwant %+v", got, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Open(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a second opening: %v", err)
	}
}

func TestNewer(t *testing.T) {
	for what, c := range map[string]struct {
		put   map[string]any
		newer bool
	}{
		"a later schema":                {map[string]any{metaKey: meta{Schema: Schema + 1}}, true},
		"a limit that is not known":     {map[string]any{nodePrefix + "9": map[string]any{"id": 9, "path": "/a", "colour": "red"}}, true},
		"one of a device":               {map[string]any{nodePrefix + "9": map[string]any{"devices": map[string]any{"GPU": map[string]any{"hue": 1}}}}, true},
		"a value of another kind":       {map[string]any{nodePrefix + "9": map[string]any{"id": "nine"}}, true},
		"a kind of record not known":    {map[string]any{"colour/9": "red"}, false},
		"what this version has written": {nil, false},
	} {
		path := filepath.Join(t.TempDir(), "state.db")
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.update(c.put, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		before := contents(t, path)
		again, err := Open(path)
		if errors.Is(err, ErrNewer) != c.newer || err != nil != c.newer {
			t.Errorf("%s: %v", what, err)
		}
		if c.newer && contents(t, path) != before {
			t.Errorf("%s: the file has changed", what)
		}
		if c.newer {
			continue
		}
		for key := range c.put {
			if again.texts[key] == "" {
				t.Errorf("%s: it is lost", what)
			}
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Whenever the writer is killed, what it said it had written is there, whole.
func TestKilledInTheMiddle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	last := uint64(0)
	for round := range 25 {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), "STORE_TEST_WRITER="+path)
		out, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		kill := rand.IntN(40) // after so many writes, and then at whatever moment the next one is
		for n := 0; lines.Scan(); n++ {
			if last, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatalf("round %d: the writer says %q", round, lines.Text())
			}
			if n == kill {
				time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() { writer.Process.Kill() })
			}
		}
		writer.Wait()
		s, err := Open(path)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		state := s.State()
		if n := state.Tree.LastID; n != last && n != last+1 {
			t.Errorf("round %d: %d was written, the file has %d", round, last, n)
		}
		if want := stateOf(state.Tree.LastID); !reflect.DeepEqual(state.Tree, want) {
			t.Errorf("round %d: the tree is %+v, want %+v", round, state.Tree, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if last < 100 {
		t.Errorf("only %d writes", last)
	}
}

// sample makes a file of several pages with a state that is known.
func sample(t testing.TB, path string) State {
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(10) {
		if err := errors.Join(s.SaveTree(stateOf(40+n)), s.SaveLgpu(Lgpu{ID: n, Sim: strings.Repeat("x",
			900)})); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.State()
}

// openDamaged opens a file with the given bytes. It may be refused and moved aside, or be one of the states that were
// written; anything else is a failure. It reports whether it was refused.
func openDamaged(t testing.TB, content []byte, written State) bool {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err == nil {
		got := s.State()
		s.Close()
		if got.Tree.LastID != written.Tree.LastID || !reflect.DeepEqual(got.Tree, stateOf(got.Tree.LastID)) ||
			!reflect.DeepEqual(got.Lgpus, written.Lgpus) {
			t.Errorf("a damaged file was read as %+v", got)
		}
		return false
	}
	var damage *DamagedError
	if !errors.As(err, &damage) || !errors.Is(err, ErrDamaged) {
		t.Fatalf("a damaged file: %v", err)
	}
	if kept, err := os.ReadFile(damage.Backup); err != nil || string(kept) != string(content) {
		t.Errorf("the backup %s has %d bytes (%v)", damage.Backup, len(kept), err)
	}
	if !strings.Contains(err.Error(), damage.Backup) || !strings.Contains(err.Error(), "start again") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	// The next one begins anew.
	s, err = Open(path)
	if err != nil {
		t.Fatalf("after the damaged file was moved: %v", err)
	}
	if got := s.State(); got.Starts != 1 || len(got.Lgpus) != 0 {
		t.Errorf("it begins with %+v", got)
	}
	s.Close()
	return true
}

func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	written := sample(t, path)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used := usedBytes(t, path)
	for size := 0; size < used; size += 1 + used/40 {
		if !openDamaged(t, content[:size], written) {
			t.Errorf("a file cut at %d of %d used bytes was accepted", size, used)
		}
	}
	if openDamaged(t, content, written) {
		t.Error("the whole file was refused")
	}
}

// usedBytes is where the last page ends that is needed.
func usedBytes(t *testing.T, path string) int {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	v := &verifier{file: f, size: info.Size(), seen: map[uint64]bool{}}
	if err := errors.Join(v.findMeta(), v.page(v.meta.root, keys{})); err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for page := range v.seen {
		last = max(last, page)
	}
	return int((last + 1) * uint64(v.meta.pageSize))
}

func TestOtherFile(t *testing.T) {
	if !openDamaged(t, []byte(strings.Repeat("no database at all\n", 5000)), State{}) {
		t.Error("any file is accepted")
	}
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a folder: %v", err)
	}
	// A database of something else is not ours.
	path := filepath.Join(dir, "state.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(path); !errors.Is(err, ErrDamaged) {
		t.Errorf("another's database: %v", err)
	}
}

// A record that is missing, or is one of before, is found out though every record there is whole.
func TestMissingRecord(t *testing.T) {
	for name, damage := range map[string]func(*bbolt.Bucket) error{
		"gone": func(b *bbolt.Bucket) error { return b.Delete([]byte(lgpuKey(3))) },
		"old": func(b *bbolt.Bucket) error {
			return b.Put([]byte(lgpuKey(3)), record(lgpuKey(3), []byte(`{"id":3}`)))
		},
	} {
		path := filepath.Join(t.TempDir(), "state.db")
		sample(t, path)
		db, err := bbolt.Open(path, 0o600, options())
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error { return damage(tx.Bucket([]byte(bucket))) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDamage changes bytes of a good file: never a crash, never a wrong state.
func FuzzDamage(f *testing.F) {
	path := filepath.Join(f.TempDir(), "state.db")
	written := sample(f, path)
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{0xff})
	f.Add(uint32(4096), []byte{0xff, 0xff})
	for i := range 400 {
		damage := make([]byte, 1+rand.IntN(12))
		for n := range damage {
			damage[n] = byte(rand.Uint32())
		}
		at := rand.Uint32()
		if i%2 == 0 { // the beginnings of pages are where it hurts
			at = uint32(rand.IntN(len(good)/4096))*4096 + uint32(rand.IntN(64))
		}
		f.Add(at, damage)
	}
	f.Fuzz(func(t *testing.T, at uint32, damage []byte) {
		content := append([]byte(nil), good...)
		for i, b := range damage {
			content[(int(at)+i)%len(content)] = b
		}
		openDamaged(t, content, written)
	})
}
