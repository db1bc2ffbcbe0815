package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain is the program itself when a test starts PEs as processes, and otherwise checks that nothing is left
// running.
func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(scriptVariable); ok {
		os.Exit(process())
	}
	code := m.Run()
	if code == 0 {
		code = leaks()
	}
	os.Exit(code)
}

// leaks waits for this package's goroutines to end, and prints those that do not.
func leaks() int {
	buffer := make([]byte, 1<<20)
	var left []string
	for range 100 {
		left = nil
		for _, g := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			if strings.Contains(g, "shmem/bootstrap.(") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return 0
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "%d goroutines are left:\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// quick are options for tests: what should not happen is over soon.
var quick = Options{JoinTimeout: 20 * time.Second, Timeout: 20 * time.Second}

// kinds are the implementations, each of which passes the same tests.
var kinds = map[string]func(t testing.TB, n int, o Options) []Bootstrap{
	"local": func(t testing.TB, n int, o Options) []Bootstrap {
		all, err := Local(n, o)
		if err != nil {
			t.Fatal(err)
		}
		return all
	},
	"tcp": func(t testing.TB, n int, o Options) []Bootstrap {
		id, err := NewUniqueID(t.Context(), ListenOptions{Local: true, Heartbeat: o.Heartbeat})
		if err != nil {
			t.Fatal(err)
		}
		return joinAll(t, id, n, o)
	},
	"callbacks": func(t testing.TB, n int, o Options) []Bootstrap {
		return carry(t, n, o, func(b Bootstrap) Callbacks {
			return Callbacks{AllGather: b.AllGather}
		})
	},
	"all callbacks": func(t testing.TB, n int, o Options) []Bootstrap {
		return carry(t, n, o, func(b Bootstrap) Callbacks {
			return Callbacks{AllGather: b.AllGather, AllToAll: b.AllToAll, Barrier: b.Barrier}
		})
	},
	"fixed callbacks": func(t testing.TB, n int, o Options) []Bootstrap {
		return carry(t, n, o, func(b Bootstrap) Callbacks {
			return Callbacks{AllGatherFixed: func(ctx context.Context, mine, all []byte) error {
				parts, err := b.AllGather(ctx, mine)
				if err != nil {
					return err
				}
				if len(parts)*len(mine) != len(all) {
					return fmt.Errorf("%d PEs bring %d bytes each, room is for %d", len(parts), len(mine), len(all))
				}
				for i, p := range parts {
					if len(p) != len(mine) {
						return fmt.Errorf("PE %d brings %d bytes where others bring %d", i, len(p), len(mine))
					}
					copy(all[i*len(mine):], p)
				}
				return nil
			}}
		})
	},
}

// carry makes PEs whose callbacks are those of local ones.
func carry(t testing.TB, n int, o Options, with func(Bootstrap) Callbacks) []Bootstrap {
	under, err := Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]Bootstrap, n)
	for i, b := range under {
		c := with(b)
		c.Abort, c.Lost, c.LostPE, c.Close = b.Abort, b.Lost(), b.LostPE, b.Close
		if all[i], err = FromCallbacks(i, n, c, o); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// joinAll joins all PEs of a job.
func joinAll(t testing.TB, id UniqueID, n int, o Options) []Bootstrap {
	t.Helper()
	all := make([]Bootstrap, n)
	for i, err := range each(n, func(i int) (err error) {
		all[i], err = Join(t.Context(), id, i, n, o)
		return err
	}) {
		if err != nil {
			t.Fatalf("PE %d: %v", i, err)
		}
	}
	return all
}

// each calls f for all PEs at once and returns their errors.
func each(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

// closeAll leaves with all PEs.
func closeAll(t testing.TB, all []Bootstrap) {
	t.Helper()
	for i, err := range each(len(all), func(i int) error { return all[i].Close() }) {
		if err != nil {
			t.Errorf("PE %d: close: %v", i, err)
		}
	}
}

// forKinds runs a test with n PEs of each implementation.
func forKinds(t *testing.T, n int, o Options, test func(t *testing.T, all []Bootstrap)) {
	for name, make := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := make(t, n, o)
			test(t, all)
			closeAll(t, all)
		})
	}
}

// part is what PE from brings to PE to in step k: bytes that depend on all of them, sometimes none.
func part(from, to, k int) []byte {
	r := rand.New(rand.NewPCG(uint64(from)<<32|uint64(to), uint64(k)))
	n := r.IntN(300)
	if r.IntN(5) == 0 {
		n = 0
	}
	if r.IntN(40) == 0 {
		n = 100_000
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from + 3*to + 5*k + i)
	}
	return b
}

// step does collective k as PE b and checks what comes.
func step(ctx context.Context, b Bootstrap, k int) error {
	n, me := b.Size(), b.Rank()
	switch rand.New(rand.NewPCG(1, uint64(k))).IntN(3) {
	case 0:
		mine := part(me, -1, k)
		got, err := b.AllGather(ctx, mine)
		if err != nil {
			return err
		}
		clear(mine) // what was brought may be used again
		for from := range n {
			if !bytes.Equal(got[from], part(from, -1, k)) {
				return fmt.Errorf("step %d: allgather gave PE %d something else of PE %d", k, me, from)
			}
			clear(got[from]) // the result is ours
		}
	case 1:
		parts := make([][]byte, n)
		for to := range n {
			parts[to] = part(me, to, k)
		}
		got, err := b.AllToAll(ctx, parts)
		if err != nil {
			return err
		}
		for from := range n {
			if !bytes.Equal(got[from], part(from, me, k)) {
				return fmt.Errorf("step %d: alltoall gave PE %d something else of PE %d", k, me, from)
			}
		}
	default:
		return b.Barrier(ctx)
	}
	return nil
}

func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			forKinds(t, n, quick, func(t *testing.T, all []Bootstrap) {
				for i, err := range each(n, func(i int) error {
					if all[i].Rank() != i || all[i].Size() != n {
						return fmt.Errorf("says it is %d of %d", all[i].Rank(), all[i].Size())
					}
					for k := range 60 {
						if err := step(t.Context(), all[i], k); err != nil {
							return err
						}
					}
					return nil
				}) {
					if err != nil {
						t.Errorf("PE %d: %v", i, err)
					}
				}
			})
		})
	}
}

// A barrier lets nobody through before all have come.
func TestBarrierHolds(t *testing.T) {
	forKinds(t, 4, quick, func(t *testing.T, all []Bootstrap) {
		var mu sync.Mutex
		came := 0
		for i, err := range each(4, func(i int) error {
			for round := 1; round <= 20; round++ {
				mu.Lock()
				came++
				mu.Unlock()
				if err := all[i].Barrier(t.Context()); err != nil {
					return err
				}
				mu.Lock()
				seen := came
				mu.Unlock()
				if seen < 4*round {
					return fmt.Errorf("round %d: through with %d of %d there", round, seen, 4*round)
				}
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("PE %d: %v", i, err)
			}
		}
	})
}

func TestManyPEs(t *testing.T) {
	const n = 64
	all := kinds["tcp"](t, n, quick)
	for i, err := range each(n, func(i int) error {
		for k := range 6 {
			if err := step(t.Context(), all[i], k); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("PE %d: %v", i, err)
		}
	}
	closeAll(t, all)
}

// Several jobs with one id, at the same time and one after the other.
func TestInstances(t *testing.T) {
	root, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var wg sync.WaitGroup
	for instance := range uint32(4) {
		wg.Go(func() {
			o := quick
			o.Instance = instance
			all := joinAll(t, root.ID(), 3, o)
			for i, err := range each(3, func(i int) error {
				got, err := all[i].AllGather(t.Context(), []byte{byte(instance)})
				if err == nil && !bytes.Equal(got[2-i], []byte{byte(instance)}) {
					err = errors.New("got what another instance brought")
				}
				return err
			}) {
				if err != nil {
					t.Errorf("instance %d, PE %d: %v", instance, i, err)
				}
			}
			closeAll(t, all)
		})
		if instance == 1 {
			wg.Wait()
		}
	}
	wg.Wait()
}

// Programs that a PE runs one after the other: each counts its instances from 0, and a PE may come again before the
// others have left.
func TestPrograms(t *testing.T) {
	root, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	all := joinAll(t, root.ID(), 2, quick)
	for round := range byte(20) {
		next := make([]Bootstrap, 2)
		for i, err := range each(2, func(i int) error {
			all[i].Close() // the other may be there still
			var err error
			if next[i], err = Join(t.Context(), root.ID(), i, 2, quick); err != nil {
				return err
			}
			got, err := next[i].AllGather(t.Context(), []byte{round})
			if err == nil && !bytes.Equal(got[1-i], []byte{round}) {
				err = errors.New("got what another program brought")
			}
			return err
		}) {
			if err != nil {
				t.Fatalf("program %d, PE %d: %v", round, i, err)
			}
		}
		all = next
	}
	closeAll(t, all)
}

// wantEnd checks that a PE was told of the end.
func wantEnd(t *testing.T, b Bootstrap, pe int, text string) {
	t.Helper()
	select {
	case <-b.Lost():
	case <-time.After(10 * time.Second):
		t.Errorf("PE %d was not told", b.Rank())
		return
	}
	blamed, err := b.LostPE()
	if blamed != pe || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("PE %d: blames %d (%v), want %d and %q", b.Rank(), blamed, err, pe, text)
	}
	if err := b.Barrier(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("PE %d: a collective after the end: %v", b.Rank(), err)
	}
}

func TestAbort(t *testing.T) {
	forKinds(t, 3, quick, func(t *testing.T, all []Bootstrap) {
		stuck := make(chan error)
		go func() { stuck <- all[0].Barrier(t.Context()) }()
		all[1].Abort(7, "out of patience")
		if err := <-stuck; err == nil || !strings.Contains(err.Error(), "out of patience") {
			t.Errorf("waiting PE: %v", err)
		}
		for _, b := range all {
			wantEnd(t, b, 1, "out of patience")
			b.Abort(8, "again")
		}
		var abort *AbortError
		if _, err := all[1].LostPE(); !errors.As(err, &abort) || abort.Code != 7 || abort.PE != 1 {
			t.Errorf("the one that aborted: %v", err)
		}
	})
}

// noLost are the implementations in which the others can be told who and why.
func forTold(t *testing.T, n int, o Options, test func(t *testing.T, all []Bootstrap)) {
	for _, name := range []string{"local", "tcp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := kinds[name](t, n, o)
			test(t, all)
			closeAll(t, all)
		})
	}
}

func TestMismatch(t *testing.T) {
	forKinds(t, 3, quick, func(t *testing.T, all []Bootstrap) {
		for i, err := range each(3, func(i int) error {
			if i == 1 {
				return all[i].Barrier(t.Context())
			}
			_, err := all[i].AllGather(t.Context(), nil)
			return err
		}) {
			var m *MismatchError
			if !errors.As(err, &m) {
				t.Errorf("PE %d: %v", i, err)
				continue
			}
			if (m.PE == 1) == (m.Other == 1) || !strings.Contains(m.Text, "barrier") || !strings.Contains(m.Text, "allgather") ||
				!strings.Contains(m.Text, "PE 1 ") {
				t.Errorf("PE %d: %+v", i, m)
			}
		}
	})
}

func TestTimeout(t *testing.T) {
	o := quick
	o.Timeout = 150 * time.Millisecond
	forTold(t, 4, o, func(t *testing.T, all []Bootstrap) {
		errs := each(4, func(i int) error {
			if i == 1 || i == 3 {
				return nil
			}
			return all[i].Barrier(t.Context())
		})
		for _, i := range []int{0, 2} {
			if !errors.Is(errs[i], ErrTimeout) || !strings.Contains(errs[i].Error(), "PEs 1, 3 did not come to the bootstrap's barrier (collective 1) within 150ms of PE") {
				t.Errorf("PE %d: %v", i, errs[i])
			}
		}
		wantEnd(t, all[3], -1, "PEs 1, 3 did not come to the bootstrap's barrier")
	})
}

// The longest timeouts are no short ones.
func TestForever(t *testing.T) {
	for _, timeout := range []time.Duration{Forever, math.MaxInt64} {
		forKinds(t, 2, Options{Timeout: timeout}, func(t *testing.T, all []Bootstrap) {
			for pe, err := range each(2, func(pe int) error { return all[pe].Barrier(t.Context()) }) {
				if err != nil {
					t.Errorf("PE %d, %v: %v", pe, timeout, err)
				}
			}
		})
	}
}

func TestContext(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		forTold(t, 2, quick, func(t *testing.T, all []Bootstrap) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := all[0].Barrier(ctx)
			if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "PE 1 did not come to the bootstrap's barrier") {
				t.Errorf("%v", err)
			}
			wantEnd(t, all[1], 1, "PE 1 did not come")
		})
	})
	t.Run("cancel", func(t *testing.T) {
		forTold(t, 2, quick, func(t *testing.T, all []Bootstrap) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := all[0].AllGather(ctx, nil)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			wantEnd(t, all[1], 0, "it gave up allgather (collective 1): context canceled")
		})
	})
	t.Run("before", func(t *testing.T) {
		forKinds(t, 2, quick, func(t *testing.T, all []Bootstrap) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := all[0].Barrier(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			for i, err := range each(2, func(i int) error { return all[i].Barrier(t.Context()) }) {
				if err != nil {
					t.Errorf("PE %d, after a call that never began: %v", i, err)
				}
			}
		})
	})
}

// A PE that left in order is not dead, but a collective with it cannot be.
func TestLeave(t *testing.T) {
	forTold(t, 3, quick, func(t *testing.T, all []Bootstrap) {
		if err := all[2].Close(); err != nil {
			t.Fatal(err)
		}
		if err := all[2].Barrier(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		select {
		case <-all[0].Lost():
			_, err := all[0].LostPE()
			t.Errorf("a PE that left counts as dead: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		err := all[0].Barrier(t.Context())
		var m *MismatchError
		if !errors.As(err, &m) || m.PE != 2 || !strings.Contains(err.Error(), "PE 2 has left the job, PE 0 calls barrier") {
			t.Errorf("%v", err)
		}
		wantEnd(t, all[1], 2, "has left")
	})
}

// Close ends a call under way, and may be called twice.
func TestCloseWakes(t *testing.T) {
	forKinds(t, 2, quick, func(t *testing.T, all []Bootstrap) {
		done := make(chan error)
		go func() { done <- all[0].Barrier(t.Context()) }()
		time.Sleep(20 * time.Millisecond)
		go all[1].Close()
		all[0].Close()
		if err := <-done; err == nil {
			t.Error("the barrier was not complete")
		}
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestArguments(t *testing.T) {
	forKinds(t, 1, quick, func(t *testing.T, all []Bootstrap) {
		if _, err := all[0].AllGather(t.Context(), make([]byte, MaxPayload+1)); err == nil {
			t.Error("too many bytes")
		}
		if _, err := all[0].AllToAll(t.Context(), make([][]byte, 2)); err == nil {
			t.Error("a part for nobody")
		}
		if _, err := all[0].AllGather(t.Context(), make([]byte, MaxPayload-1024)); err != nil {
			t.Error(err)
		}
	})
	id, err := newID([16]byte{}, someAddresses[:1])
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range [][2]int{{0, 0}, {-1, 1}, {1, 1}, {0, -1}, {0, MaxPEs + 1}} {
		if _, err := Join(t.Context(), id, place[0], place[1], quick); err == nil {
			t.Errorf("PE %d of %d", place[0], place[1])
		}
		if _, err := FromCallbacks(place[0], place[1], Callbacks{AllGather: func(context.Context, []byte) ([][]byte, error) { return nil, nil }}, quick); err == nil {
			t.Errorf("callbacks: PE %d of %d", place[0], place[1])
		}
	}
	if _, err := FromCallbacks(0, 1, Callbacks{}, quick); err == nil {
		t.Error("no allgather")
	}
	if _, err := Local(0, quick); err == nil {
		t.Error("no PE")
	}
}

// Callbacks that hang, fail or lie.
func TestBadCallbacks(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	for text, gather := range map[string]func(context.Context, []byte) ([][]byte, error){
		"did not return within 50ms": func(context.Context, []byte) ([][]byte, error) { <-hang; return nil, nil },
		"store is gone":              func(context.Context, []byte) ([][]byte, error) { return nil, errors.New("store is gone") },
		"1 parts of 2 PEs":           func(_ context.Context, b []byte) ([][]byte, error) { return [][]byte{b}, nil },
		"PE 1 brought 3 bytes":       func(_ context.Context, b []byte) ([][]byte, error) { return [][]byte{b, b[:3]}, nil },
	} {
		b, err := FromCallbacks(0, 2, Callbacks{AllGather: gather}, Options{Timeout: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		wantErr := func() {
			t.Helper()
			if err := b.Barrier(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("want %q: %v", text, err)
			}
		}
		wantErr()
		wantErr()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A gather of several calls makes no more of them when it is over, however well the first that was abandoned returns.
func TestLeftBehind(t *testing.T) {
	for name, end := range map[string]func(b Bootstrap, cancel func()){
		"context": func(_ Bootstrap, cancel func()) { cancel() },
		"closed":  func(b Bootstrap, _ func()) { b.Close() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var b Bootstrap
		calls := 0
		b, err := FromCallbacks(0, 1, Callbacks{AllGatherFixed: func(context.Context, []byte, []byte) error {
			calls++
			end(b, cancel)
			return nil
		}}, quick)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.(*carried).c.AllGather(ctx, nil); err == nil || calls != 1 {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
		b.Close()
		cancel()
	}
}

// The context of a callback ends when nobody waits for it any more.
func TestCallbackContext(t *testing.T) {
	for name, end := range map[string]func(b Bootstrap){
		"lost":   func(b Bootstrap) { b.Abort(1, "") },
		"closed": func(b Bootstrap) { b.Close() },
	} {
		entered, left := make(chan struct{}), make(chan struct{})
		b, err := FromCallbacks(0, 1, Callbacks{AllGather: func(ctx context.Context, _ []byte) ([][]byte, error) {
			close(entered)
			<-ctx.Done()
			close(left)
			return nil, ctx.Err()
		}}, quick)
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan error)
		go func() { over <- b.Barrier(t.Context()) }()
		<-entered
		end(b)
		select {
		case <-left:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the context goes on", name)
		}
		if err := <-over; err == nil {
			t.Errorf("%s: no error", name)
		}
		b.Close()
	}
}

func TestRanks(t *testing.T) {
	for want, list := range map[string][]int{
		"PE 3":        {3},
		"PEs 1, 3-5":  {1, 3, 4, 5},
		"PEs 0, 1":    {0, 1},
		"PEs 0, 1, 7": {0, 1, 7},
		"PEs 0-15":    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		"PEs 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 2 more": {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34},
	} {
		if got := ranks(list); got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
}

// BenchmarkAllGather is what initialisation pays for each exchange.
func BenchmarkAllGather(b *testing.B) {
	for _, name := range []string{"local", "tcp"} {
		b.Run(name, func(b *testing.B) {
			all := kinds[name](b, 8, quick)
			blob := make([]byte, 256)
			b.ResetTimer()
			for _, err := range each(8, func(i int) error {
				for range b.N {
					if _, err := all[i].AllGather(b.Context(), blob); err != nil {
						return err
					}
				}
				return nil
			}) {
				if err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			closeAll(b, all)
		})
	}
}
