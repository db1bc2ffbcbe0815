package driver

import (
	"context"
	"errors"
	"testing"
)

// A second driver of a node waits until the first one ends, and serves then; one that is told to end meanwhile does.
func TestAlone(t *testing.T) {
	dir := t.TempDir()
	release, err := Alone(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := Alone(ctx, dir)
		waiting <- err
	}()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("beside another driver: %v", err)
	}
	got := make(chan error)
	go func() {
		release, err := Alone(t.Context(), dir)
		if err == nil {
			defer release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("two drivers serve: %v", err)
	default:
	}
	release()
	if err := <-got; err != nil {
		t.Errorf("once the other has ended: %v", err)
	}
	if _, err := Alone(t.Context(), dir+"/absent"); err == nil {
		t.Error("in a folder that is not there")
	}
}
