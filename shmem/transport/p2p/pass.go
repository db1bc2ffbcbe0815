package p2p

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxServing bounds the connections served at once; more wait in the socket's queue.
const maxServing = 64

// server gives descriptors to who shows a token.
type server struct {
	name     string // abstract, with the leading @
	listener *net.UnixListener
	timeout  time.Duration // of one connection
	serving  chan struct{}
	done     sync.WaitGroup

	mu     sync.Mutex
	offers map[[tokenBytes]byte]func() (int, error) // open a descriptor, which the caller closes
	conns  map[*net.UnixConn]bool                   // nil once closed
}

func serve(timeout time.Duration) (*server, error) {
	var id [12]byte
	rand.Read(id[:]) // never fails
	s := &server{name: "@lshmem-" + hex.EncodeToString(id[:]), timeout: timeout, serving: make(chan struct{}, maxServing),
		offers: map[[tokenBytes]byte]func() (int, error){}, conns: map[*net.UnixConn]bool{}}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the peers that map this PE's heap: %w", err)
	}
	s.listener = l
	s.done.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, for now
				time.Sleep(time.Millisecond)
				continue
			}
			s.serving <- struct{}{}
			s.done.Go(func() {
				s.answer(c)
				<-s.serving
			})
		}
	})
	return s, nil
}

func (s *server) offer(token [tokenBytes]byte, open func() (int, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[token] = open
}

func (s *server) withdraw(token [tokenBytes]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.offers, token)
}

// answer serves one connection: a token in, one byte and a descriptor out; or a text that says why not.
func (s *server) answer(c *net.UnixConn) {
	defer c.Close()
	if !s.enter(c) {
		return
	}
	defer s.leave(c)
	c.SetDeadline(time.Now().Add(s.timeout))
	if err := sameUser(c); err != nil {
		return
	}
	var token [tokenBytes]byte
	if _, err := io.ReadFull(c, token[:]); err != nil {
		return
	}
	s.mu.Lock()
	open := s.offers[token]
	s.mu.Unlock()
	if open == nil {
		c.Write([]byte("-no such piece of heap"))
		return
	}
	fd, err := open()
	if err != nil {
		c.Write([]byte("-" + err.Error()))
		return
	}
	defer unix.Close(fd)
	c.WriteMsgUnix([]byte{'+'}, unix.UnixRights(fd), nil) // the other side sees whether it came
}

func (s *server) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *server) leave(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// close stops serving and ends connections under way.
func (s *server) close() error {
	err := s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.done.Wait()
	return err
}

// sameUser refuses a peer of another user.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("ask who is there: %w", err)
	}
	if cred.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("the other process is user %d's, not %d's", cred.Uid, os.Geteuid())
	}
	return nil
}

// fetch pulls the descriptor that a token stands for. It waits for the peer as long as timeout, 0: for ever.
func fetch(name string, token [tokenBytes]byte, timeout time.Duration) (int, error) {
	if len(name) < 2 || name[0] != '@' {
		return -1, fmt.Errorf("%q is not an abstract socket", name)
	}
	conn, err := net.DialTimeout("unix", name, timeout)
	if err != nil {
		return -1, fmt.Errorf("connect to the peer: %w", err)
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	if timeout > 0 {
		c.SetDeadline(time.Now().Add(timeout))
	}
	if err := sameUser(c); err != nil {
		return -1, err
	}
	if _, err := c.Write(token[:]); err != nil {
		return -1, fmt.Errorf("ask the peer: %w", err)
	}
	text, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4*4))
	n, cn, _, _, err := c.ReadMsgUnix(text, control)
	if err != nil {
		return -1, fmt.Errorf("wait for the peer's descriptor: %w", err)
	}
	fds := received(control[:cn])
	if n == 1 && text[0] == '+' && len(fds) == 1 {
		unix.CloseOnExec(fds[0])
		return fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	if n > 1 && text[0] == '-' {
		return -1, fmt.Errorf("the peer refused: %s", text[1:n])
	}
	return -1, errors.New("the peer answered without a descriptor")
}

// received are the descriptors in control messages.
func received(control []byte) []int {
	var out []int
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			out = append(out, fds...)
		}
	}
	return out
}
