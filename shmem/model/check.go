package model

import (
	"fmt"
	"strings"
)

// Property names what a violation breaks.
type Property string

// Violation says which property a step or a final state breaks, and how.
type Violation struct {
	Property Property
	Text     string
}

func (v *Violation) Error() string { return string(v.Property) + ": " + v.Text }

// Emit receives one possible step: who takes it, what it is, the state after it, and the property it violates, if any.
type Emit[S comparable] func(who int, what string, next S, broken *Violation)

// System is a transition system with states of type S. States that are equal in all that matters must be equal as
// values.
type System[S comparable] interface {
	Initial() S
	// Next emits every step that is possible in s. A step that changes nothing need not be emitted.
	Next(s *S, emit Emit[S])
	// Final judges a state in which no step is possible.
	Final(s *S) *Violation
	// Actor and Describe give the words for a trace.
	Actor(who int) string
	Describe(s *S) string
}

// Step is one line of a trace.
type Step struct {
	Who, What, State string
}

// Counterexample is a shortest way to a violation.
type Counterexample struct {
	Violation
	Trace []Step
}

// Error is the violation and every step to it.
func (c *Counterexample) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, after %d steps:", c.Property, c.Text, len(c.Trace)-1)
	for i, s := range c.Trace {
		fmt.Fprintf(&b, "\n%4d  %-9s %-34s %s", i, s.Who, s.What, s.State)
	}
	return b.String()
}

// Result says how much was searched.
type Result struct {
	States, Steps int
	Depth         int // steps to the last new state
	Final         int // states with no step
}

// TooManyStates is the error of a search that was ended by its cap: nothing is proven.
type TooManyStates struct{ Limit int }

func (e *TooManyStates) Error() string {
	return fmt.Sprintf("more than %d states: make the configuration smaller or raise the limit", e.Limit)
}

// Check searches all states of a system breadth first. It returns a *Counterexample, shortest first, a *TooManyStates,
// or nil if every reachable state and step was seen and none violates anything. Memory is about twice the size of a
// state for each.
func Check[S comparable](sys System[S], limit int) (Result, error) {
	var (
		res    Result
		seen   = make(map[S]int32)
		parent []int32
		queue  = []S{sys.Initial()}
		bad    *Violation
		badAt  int32 // the state it was found in
		badWho int
		badHow string
		badTo  S
	)
	seen[queue[0]] = 0
	parent = append(parent, -1)
	level, next := queue, []S(nil)
	for number := int32(0); len(level) > 0; res.Depth++ {
		next = next[:0:0]
		for i := range level {
			s, at, moved := &level[i], number, false
			number++
			sys.Next(s, func(who int, what string, to S, broken *Violation) {
				res.Steps++
				if bad != nil {
					return
				}
				if broken != nil {
					bad, badAt, badWho, badHow, badTo = broken, at, who, what, to
					return
				}
				if to == *s {
					return
				}
				moved = true
				if _, ok := seen[to]; ok {
					return
				}
				seen[to] = int32(len(parent))
				parent = append(parent, at)
				next = append(next, to)
			})
			if bad == nil && !moved {
				res.Final++
				if v := sys.Final(s); v != nil {
					bad, badAt = v, at
				}
			}
			if bad != nil {
				res.States = len(parent)
				return res, &Counterexample{*bad, trace(sys, seen, parent, badAt, badWho, badHow, badTo)}
			}
			if len(parent) > limit {
				res.States = len(parent)
				return res, &TooManyStates{limit}
			}
		}
		level = next
	}
	res.States = len(parent)
	return res, nil
}

// trace walks from the first state to number at by the parents that the search noted, and takes the last step, if there
// is one.
func trace[S comparable](sys System[S], seen map[S]int32, parent []int32, at int32, who int, how string, to S) []Step {
	var path []int32
	for n := at; n >= 0; n = parent[n] {
		path = append(path, n)
	}
	s := sys.Initial()
	steps := []Step{{"", "start", sys.Describe(&s)}}
	for i := len(path) - 2; i >= 0; i-- {
		var found *S
		var step Step
		sys.Next(&s, func(who int, what string, to S, broken *Violation) {
			if n, ok := seen[to]; found == nil && broken == nil && ok && n == path[i] {
				found, step = &to, Step{sys.Actor(who), what, sys.Describe(&to)}
			}
		})
		s = *found
		steps = append(steps, step)
	}
	if how != "" {
		steps = append(steps, Step{sys.Actor(who), how, sys.Describe(&to)})
	}
	return steps
}
