// Package tig has what nerdctl's program is compiled with of nerdctl's test framework, tigron. nerdctl's go.mod has that in a
// folder of its repository which is in no released module.
package tig

// T is what a helper of nerdctl's tests, which its program links and does not call, needs of a test.
type T interface {
	Log(args ...any)
	FailNow()
}
