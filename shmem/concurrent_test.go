package shmem

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem/layout"
)

// concurrent are calls by several goroutines of a PE. All PEs are in one process, so that one can see where another is.
var concurrent = []struct {
	name    string
	pes     int
	timeout time.Duration
	run     func(pes []*PE) error
}{
	{"one-sided calls beside a barrier", 2, patient, besideBarrier},
	{"barriers of teams in a ring", 3, patient, ring},
	{"collectives of two teams of the same PEs", 2, patient, samePEs},
	{"calls of one team", 2, patient, oneTeam},
	{"a barrier after what is under way", 2, patient, behindPut},
	{"a team that ends", 2, patient, teamEnds},
	{"a team that one PE gives up", 2, time.Second, givenUp},
}

// patient is the timeout of jobs in which none should pass.
const patient = 20 * time.Second

// TestManyCallers is of PEs without GPUs, TestManyCallersOnGPUs of those with.
func TestManyCallers(t *testing.T) {
	for _, c := range concurrent {
		t.Run(c.name, func(t *testing.T) {
			if err := inOneProcess(c.pes, c.timeout, plainConfig, c.run); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestManyCallersOnGPUs(t *testing.T) {
	m := newMachine(t, 2, 1<<30)
	for _, c := range concurrent {
		for name, env := range map[string][]string{"": nil, " by a network": {"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}} {
			t.Run(c.name+name, func(t *testing.T) {
				if err := output(m.process("concurrent "+c.name, append(env, "LSHMEM_MAX_TEAMS=9")...)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func init() {
	for _, c := range concurrent {
		alone["concurrent "+c.name] = func() error {
			return inOneProcess(c.pes, c.timeout, func() Config {
				config, err := ConfigFrom(os.Environ())
				if err != nil {
					panic(err)
				}
				return config
			}, c.run)
		}
	}
}

// inOneProcess makes a job in this process and gives f all its PEs.
func inOneProcess(n int, timeout time.Duration, config func() Config, f func(pes []*PE) error) error {
	pes := make([]*PE, n)
	ready, done := make(chan int, n), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- tryJob(n, func(pe int, c *Config) {
			b := c.Bootstrap
			*c = config()
			c.Bootstrap, c.Timeout = b, timeout
			if !c.NoGPU {
				c.Device = pe % 2
			}
		}, func(p *PE) error {
			pes[p.Rank()] = p
			ready <- p.Rank()
			<-done
			return nil
		})
	}()
	for range n {
		select {
		case <-ready:
		case err := <-ended: // none of them got through Init
			return err
		}
	}
	err := f(pes)
	if err != nil {
		pes[0].Abort(1, err.Error())
	}
	close(done)
	if last := <-ended; err != nil || pes[0].lost.Load() == nil { // one that a test wants ends the job with an error
		err = errors.Join(err, last)
	}
	return err
}

// all runs f as every PE.
func all(pes []*PE, f func(p *PE) error) error {
	var g errgroup.Group
	for _, p := range pes {
		g.Go(func() error {
			if err := f(p); err != nil {
				return fmt.Errorf("PE %d: %w", p.Rank(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// inTurn makes two calls of a PE that may wait for each other's elsewhere, the second when the first, which is of a
// team, is under way.
func inTurn(p *PE, team TeamID, first, second func() error) error {
	var g errgroup.Group
	done := make(chan struct{})
	g.Go(func() error {
		defer close(done)
		return first()
	})
	g.Go(func() error {
		mu := &p.teams.byID[team].Load().blocking
		for mu.TryLock() {
			mu.Unlock()
			select {
			case <-done: // already
				return second()
			default:
				runtime.Gosched()
			}
		}
		return second()
	})
	return g.Wait()
}

// besideBarrier: while a goroutine waits in a barrier, another does what the other PE waits for before it comes there.
func besideBarrier(pes []*PE) error {
	words := make([]uint64, 2)
	if err := all(pes, func(p *PE) (err error) {
		words[p.Rank()], err = p.Calloc(8, 8)
		return err
	}); err != nil {
		return err
	}
	for round := range uint64(3) {
		var g errgroup.Group
		g.Go(func() error {
			return inTurn(pes[0], World, pes[0].BarrierAll, func() error {
				p, a := pes[0], words[0]
				v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint64, a+16, 1, 0, true, 1)
				if err != nil || v != round {
					return fmt.Errorf("fetch and add beside a barrier: %d, %w", v, err)
				}
				return errors.Join(p.Put(a+24, a, 8, 1), p.Quiet(), p.PutSignal(a+8, a, 8, a, round+1, layout.SignalSet, 1))
			})
		})
		g.Go(func() error {
			p, a := pes[1], words[1]
			if _, err := p.SignalWait(a, layout.CompareEQ, round+1); err != nil {
				return err
			}
			return p.BarrierAll()
		})
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// ring: three PEs are in three teams of two, and begin with different ones.
func ring(pes []*PE) error {
	teams := make([][3]TeamID, 3) // by PE
	if err := all(pes, func(p *PE) (err error) {
		for i := range 3 {
			if teams[p.Rank()][i], err = p.TeamCreate([]int{i, (i + 1) % 3}); err != nil {
				return err
			}
			if in := teams[p.Rank()][i] != InvalidTeam; in != (p.Rank() == i || p.Rank() == (i+1)%3) {
				return fmt.Errorf("team %d of %d: in it: %v", i, p.Rank(), in)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for range 3 {
		if err := all(pes, func(p *PE) error {
			me := p.Rank()
			first, second := teams[me][me], teams[me][(me+2)%3]
			// The first waits for PE me+1, which is in another before.
			return inTurn(p, first, func() error { return p.Barrier(first) }, func() error { return p.Barrier(second) })
		}); err != nil {
			return err
		}
		if err := all(pes, (*PE).BarrierAll); err != nil {
			return err
		}
	}
	return all(pes, func(p *PE) error {
		me := p.Rank()
		for i := range 3 {
			if err := p.TeamDestroy(teams[me][i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// samePEs: the members of two teams are the same, and call them in opposite order.
func samePEs(pes []*PE) error {
	return all(pes, func(p *PE) error {
		t, err := p.TeamCreate([]int{1, 0})
		if err != nil {
			return err
		}
		a, err := p.Calloc(64, 8)
		if err != nil {
			return err
		}
		me := uint64(p.Rank())
		if err := errors.Join(p.P(a, me+1, 8, p.Rank()), p.P(a+8, me+10, 8, p.Rank()), p.BarrierAll()); err != nil {
			return err
		}
		work := map[TeamID]func() error{
			World: func() error { return p.FCollect(World, a+64, a, 8) },
			t:     func() error { return p.Reduce(t, layout.TypeUint64, layout.ReduceSum, a+128, a+8, 1) },
		}
		order := []TeamID{World, t}
		if me == 1 {
			order = []TeamID{t, World}
		}
		if err := inTurn(p, order[0], work[order[0]], work[order[1]]); err != nil {
			return err
		}
		for at, want := range map[uint64]uint64{64: 1, 72: 2, 128: 21} {
			if v, err := p.G(a+at, 8, p.Rank()); err != nil || v != want {
				return fmt.Errorf("the word at %d is %d, want %d: %w", at, v, want, err)
			}
		}
		return errors.Join(p.BarrierAll(), p.TeamDestroy(t))
	})
}

// oneTeam: calls of one team by several goroutines are done one after the other.
func oneTeam(pes []*PE) error {
	return all(pes, func(p *PE) error {
		var g errgroup.Group
		for range 3 {
			g.Go(func() error {
				for range 5 {
					if err := p.BarrierAll(); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return g.Wait()
	})
}

// behindPut: what a put_nbi has yet to send is there after a barrier, although they are on different streams.
func behindPut(pes []*PE) error {
	words := make([]uint64, 2)
	if err := all(pes, func(p *PE) (err error) {
		words[p.Rank()], err = p.Calloc(8, 8)
		if err != nil {
			return err
		}
		return p.P(words[p.Rank()]+8, 5, 8, p.Rank())
	}); err != nil {
		return err
	}
	p, a := pes[0], words[0]
	if p.plain() { // whose calls are done when they return
		if err := p.PutNBI(a+16, a+8, 8, 1); err != nil {
			return err
		}
		if err := all(pes, (*PE).BarrierAll); err != nil {
			return err
		}
	} else {
		// The stream stands still until the other PE opens the gate, which it does when the barrier waits for the
		// stream.
		p.own.mu.Lock()
		err := p.WaitUntilOnStream(a, layout.TypeUint64, layout.CompareEQ, 1, p.own.stream)
		p.own.mu.Unlock()
		if err = errors.Join(err, p.PutNBI(a+16, a+8, 8, 1)); err != nil {
			return err
		}
		var g errgroup.Group
		through := make(chan struct{})
		g.Go(p.BarrierAll)
		g.Go(func() error {
			defer close(through)
			if err := pes[1].BarrierAll(); err != nil {
				return err
			}
			if v, err := pes[1].G(words[1]+16, 8, 1); err != nil || v != 5 {
				return fmt.Errorf("after the barrier the word is %d, not what was put before: %w", v, err)
			}
			return nil
		})
		g.Go(func() error {
			for p.own.mu.TryLock() {
				p.own.mu.Unlock()
				select {
				case <-through: // it did not wait
				default:
					runtime.Gosched()
					continue
				}
				break
			}
			return pes[1].P(words[1], 1, 8, 0)
		})
		if err := g.Wait(); err != nil {
			return err
		}
	}
	if v, err := pes[1].G(words[1]+16, 8, 1); err != nil || v != 5 {
		return fmt.Errorf("what was put is %d: %w", v, err)
	}
	return nil
}

// teamEnds: a call that comes when its team has ended is an error, and its number begins anew.
func teamEnds(pes []*PE) error {
	return all(pes, func(p *PE) error {
		for range 4 {
			t, err := p.TeamCreate([]int{1, 0})
			if err != nil {
				return err
			}
			if t != TeamID(layout.TeamFirstOwned) {
				return fmt.Errorf("team %d", t)
			}
			kept := p.teams.byID[t].Load()
			if err := errors.Join(p.Barrier(t), p.Sync(t), p.Barrier(t), p.TeamDestroy(t)); err != nil {
				return err
			}
			if err := p.Barrier(t); Status(err) != layout.StatusArgument {
				return fmt.Errorf("a barrier of a team that ended: %v", err)
			}
			if kept.stream != 0 || !kept.ended {
				return fmt.Errorf("the team that ended has a stream: %#x", kept.stream)
			}
			if err := p.BarrierAll(); err != nil {
				return err
			}
		}
		return nil
	})
}

// givenUp: after one PE has waited for another in vain, which comes later, both have an error: they do not make
// different teams of it.
func givenUp(pes []*PE) error {
	if t, err := pes[0].TeamCreate([]int{0, 1}); Status(err) != layout.StatusTimeout || t != InvalidTeam {
		return fmt.Errorf("a team that the other PE does not make: %d, %v", t, err)
	}
	for _, p := range []*PE{pes[1], pes[0]} {
		select {
		case <-p.b.Lost():
		case <-time.After(patient):
		}
		t, err := p.TeamCreate([]int{0, 1})
		if Status(err) != layout.StatusPeer || t != InvalidTeam || !strings.Contains(err.Error(), "PE 0 gave up: lshmem: team create: PE 1: not there after") {
			return fmt.Errorf("PE %d: a team, later: %d, %v", p.Rank(), t, err)
		}
		for end := time.Now().Add(patient); p.Err() == nil; runtime.Gosched() { // until watch has seen it
			if time.Now().After(end) {
				return fmt.Errorf("PE %d: nothing is wrong with the job", p.Rank())
			}
		}
	}
	return nil
}
