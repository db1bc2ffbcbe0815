// Package server answers the API's calls for a daemon. Each call is checked, handed to package daemon or limits, and
// its result written as a message. Who may do what is the tree's to say; here is only which calls are for administrators
// alone (rules).
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/policy/limits"
)

// Bounds of what a caller can make the daemon do or keep.
const (
	maxRequest     = 1 << 20 // bytes
	maxConnections = 16      // of one user other than root and the daemon's own, without those that are held
	maxOthers      = 256     // connections of all such users; root and the daemon's own user have room beside them
	maxHeld        = 2048    // connections of all such users that are held: by launchers, and by calls that wait
	maxStreams     = 16      // calls at the same time on one connection
	handshakeTime  = 10 * time.Second
	endTime        = 2 * time.Second // for calls to end when the server does
)

// Options of a server.
type Options struct {
	// Page returns the addresses of the page with somebody's token; nil where there is no page.
	Page func(limits.Author) []string
	// Stop ends the daemon; Control.Stop calls it.
	Stop func()
	// Log is told of changes and who made them; the default discards.
	Log *slog.Logger
}

// Server is the API of one daemon.
type Server struct {
	api.UnimplementedViewServer
	api.UnimplementedControlServer

	daemon  *daemon.Daemon
	options Options
	peers   *peers
	grpc    *grpc.Server
	ending  chan struct{} // closed when Serve ends
	end     func()        // closes ending

	mu      sync.Mutex
	watches map[uint32]int // guarded by mu; calls that wait, by user
}

// New makes a server of n.
func New(n *daemon.Daemon, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Stop == nil {
		o.Stop = func() {}
	}
	s := &Server{
		daemon: n, options: o, ending: make(chan struct{}),
		peers:   &peers{trusts: trusted, limit: maxConnections, total: maxOthers, most: maxHeld, open: map[uint32]int{}},
		watches: map[uint32]int{},
	}
	s.end = sync.OnceFunc(func() { close(s.ending) })
	s.grpc = grpc.NewServer(
		grpc.Creds(s.peers),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxSendMsgSize(api.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream))
	api.RegisterViewServer(s.grpc, s)
	api.RegisterControlServer(s.grpc, s)
	return s, nil
}

// Listen opens the API's socket at path, for every user, in place of one that nobody listens at any more. The caller
// has the lock of the runtime folder.
func Listen(path string) (net.Listener, error) {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("remove the old socket %s: %w", path, err)
	}
	l, err := foreign.Listen("unix", path, false, &foreign.Closers{})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := unix.Chmod(path, 0o666); err != nil { // who connects is asked, whoever it is
		return nil, errors.Join(fmt.Errorf("open %s to all users: %w", path, err), l.Close())
	}
	return l, nil
}

// Serve answers calls that come through l until ctx ends; then it returns nil and l is closed. Launchers stay attached,
// and attach again to the next daemon.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, s.stop)
	defer stop()
	if err := s.grpc.Serve(admission{l, s.peers}); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the API at %s: %w", l.Addr(), err)
	}
	return nil
}

// stop ends all calls, those that take long at once.
func (s *Server) stop() {
	s.end()
	kill := time.AfterFunc(endTime, s.grpc.Stop)
	defer kill.Stop()
	s.grpc.GracefulStop()
}

// errEnding is the end of every call on a daemon that was told to end: launchers wait for another instead of starting
// one.
var errEnding = sync.OnceValue(func() error { // no command but the daemon has the time to make it
	return withFailure(codes.Unavailable, "it is ending", &api.Failure{Errno: int32(unix.ESHUTDOWN)})
})

// unary keeps the daemon from leaving during a call, and from obeying who may not command it.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	defer s.daemon.Use()()
	if err := s.allow(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	reply, err := handle(ctx, request)
	return reply, failure(err)
}

func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	defer s.daemon.Use()()
	if err := s.allow(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	release, err := s.watch(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.ending:
			cancel(daemon.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err = handle(server, bounded{stream, ctx})
	select {
	case <-s.ending:
		if err != nil {
			return errEnding()
		}
	default:
	}
	return failure(err)
}

// bounded is a stream that ends with the server.
type bounded struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (b bounded) Context() context.Context { return b.ctx }
