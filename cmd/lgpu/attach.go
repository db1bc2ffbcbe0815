package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/api"
)

// How long a launcher waits between two attempts to find the daemon again.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)

// leaving is how long daemons may turn out to be leaving, one after the other, before a launcher gives up; and how long a
// launcher that is leaving waits for a daemon that it starts.
const leaving = 10 * time.Second

// attached is an lgpu that this process is attached to as long as it wants to, whatever happens to the daemon.
type attached struct {
	*api.Attachment

	again  api.Options     // how to find the daemon after this one
	wanted context.Context // ends when the lgpu is not wanted any more
	unwant context.CancelFunc
	closed chan struct{} // closed when it has been given back, or there is nobody to give it to

	refused *api.Refusals // what the daemon said when the lgpu was given back; to be read once closed is closed
}

// attempt is the attachment by one connection.
type attempt struct {
	conn   *api.Conn
	stream api.Control_AttachClient
	got    *api.Attachment
}

// attach attaches this process to an lgpu until Close. The connection is closed in any case.
func attach(ctx context.Context, conn *api.Conn, request *api.AttachRequest, options api.Options) (*attached, error) {
	a, err := ask(ctx, conn, request)
	for began := time.Now(); errors.Is(err, api.ErrGone) && time.Since(began) < leaving; {
		// The daemon left, or was ended, just as it was asked. There will be another.
		time.Sleep(firstRetry)
		if conn, err = api.Dial(ctx, options); err == nil {
			a, err = ask(ctx, conn, request)
		}
	}
	if err != nil {
		return nil, err
	}
	h := &attached{Attachment: a.got, closed: make(chan struct{})}
	if a.conn.Daemon.GetIdleNs() > 0 && options.Socket == "" {
		h.again = api.Options{Dir: filepath.Dir(a.conn.Socket), Change: true, Start: options.Start}
	} else { // whoever started this one will start the next
		h.again = api.Options{Socket: a.conn.Socket, Change: true}
	}
	h.wanted, h.unwant = context.WithCancel(ctx)
	go h.keep(ctx, a)
	return h, nil
}

// ask asks one daemon. It closes the connection after an error.
func ask(ctx context.Context, conn *api.Conn, request *api.AttachRequest) (*attempt, error) {
	stream, err := conn.Attach(ctx)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
		return nil, errors.Join(err, conn.Close())
	}
	got, err := stream.Recv()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &attempt{conn, stream, got}, nil
}

// Close gives the lgpu back and waits until the daemon has it.
func (h *attached) Close() {
	h.unwant()
	<-h.closed
}

// keep attaches again whenever the daemon has gone. The program does not notice: its limits stay where it has
// them, and its gates run on what they were granted.
func (h *attached) keep(ctx context.Context, a *attempt) {
	defer close(h.closed)
	for a != nil {
		err := h.wait(a)
		a.conn.Close()
		if err == nil {
			return
		}
		a = h.retake(ctx, err)
	}
}

// wait returns nil when the lgpu has been given back, and an error when the daemon ended.
func (h *attached) wait(a *attempt) error {
	type end struct {
		refused *api.Refusals
		err     error
	}
	ended := make(chan end, 1)
	go func() {
		var e end
		for e.err == nil {
			var message *api.Attachment
			if message, e.err = a.stream.Recv(); e.err == nil {
				e.refused = message.GetRefused()
			}
		}
		ended <- e
	}()
	select {
	case e := <-ended:
		return e.err
	case <-h.wanted.Done():
	}
	if a.stream.CloseSend() == nil {
		h.refused = (<-ended).refused
	}
	return nil
}

// retake finds the daemon anew after one ended with why. A daemon that died is started again; one that somebody ended
// is waited for. It returns nil when the lgpu is not wanted any more or the next daemon does not have it.
func (h *attached) retake(ctx context.Context, why error) *attempt {
	options, dialing := h.again, h.wanted
	if errors.Is(why, syscall.ESHUTDOWN) {
		options.Start = nil
	}
	if options.Start != nil { // what it starts serves when this process leaves, so that who then ends daemons finds it
		var cancel context.CancelFunc
		dialing, cancel = context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(h.wanted, func() { time.AfterFunc(leaving, cancel) })
		defer stop()
	}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		timer := time.NewTimer(pause)
		select {
		case <-h.wanted.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		conn, err := api.Dial(dialing, options)
		if err != nil {
			continue
		}
		a, err := ask(ctx, conn, &api.AttachRequest{Path: h.Path, Reattach: h.Id})
		if err == nil {
			return a
		}
		if !errors.Is(err, api.ErrGone) {
			return nil // it does not know the lgpu, which now lives as long as its clients
		}
	}
}
