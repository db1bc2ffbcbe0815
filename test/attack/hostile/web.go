package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// patience is how long an attacker waits for an answer that it does want.
const patience = 5 * time.Second

// dialHTTP connects to one of the daemon's ports, from any address of loopback: a user has them all.
func (w *world) dialHTTP(r *rand.Rand) (net.Conn, error) {
	address := w.metrics
	if r.IntN(2) == 0 {
		address = w.page
	}
	return w.dialFrom(r, address)
}

func (w *world) dialFrom(r *rand.Rand, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: time.Second}
	if r.IntN(2) == 0 {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, byte(1+r.IntN(100)), byte(r.IntN(256)), byte(1+r.IntN(250)))}
	}
	conn, err := d.Dial("tcp", address)
	w.note(err)
	return conn, err
}

// hoard keeps connections, and replaces those that the other side has ended.
type hoard struct {
	most int
	held []net.Conn
}

// add keeps a connection, if need be in place of an old one.
func (h *hoard) add(c net.Conn, r *rand.Rand) {
	if len(h.held) < h.most {
		h.held = append(h.held, c)
		return
	}
	at := r.IntN(len(h.held))
	h.held[at].Close()
	h.held[at] = c
}

// httpSilent opens connections and says nothing, or only the beginning of a request.
func (w *world) httpSilent() {
	h := hoard{most: 15000}
	w.each(1, func(r *rand.Rand) {
		c, err := w.dialHTTP(r)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			return
		}
		if r.IntN(2) == 0 {
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
		}
		h.add(c, r)
	})
}

// httpSlow sends requests a byte at a time.
func (w *world) httpSlow() {
	h := hoard{most: 1000}
	text := "POST /api/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n" + strings.Repeat("X-Y: z\r\n", 1000)
	sent := 0
	w.each(1, func(r *rand.Rand) {
		if len(h.held) < h.most {
			if c, err := w.dialHTTP(r); err == nil {
				h.add(c, r)
			}
		}
		if len(h.held) == 0 {
			return
		}
		sent++
		at := r.IntN(len(h.held))
		if _, err := io.WriteString(h.held[at], text[sent%len(text):sent%len(text)+1]); err != nil {
			h.held[at].Close()
			h.held = append(h.held[:at], h.held[at+1:]...)
		}
	})
}

// httpDeaf asks for much and reads nothing.
func (w *world) httpDeaf() {
	h := hoard{most: 3000}
	w.each(1, func(r *rand.Rand) {
		c, err := w.dialHTTP(r)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			return
		}
		if t, is := c.(*net.TCPConn); is {
			_ = t.SetReadBuffer(2048)
		}
		path := []string{"/metrics", "/api/state", "/api/history", "/", "/page.js"}[r.IntN(5)]
		one := "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
		_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = io.WriteString(c, strings.Repeat(one, 100))
		h.add(c, r)
	})
}

// httpJunk sends what is no request, headers and bodies without end, and writes without a token.
func (w *world) httpJunk() {
	w.each(2, func(r *rand.Rand) {
		c, err := w.dialHTTP(r)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		switch r.IntN(5) {
		case 0:
			_, _ = io.WriteString(c, name(r, 4096))
		case 1:
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("y", 4<<20))
		case 2:
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"+strings.Repeat("X: y\r\n", 100_000))
		case 3:
			_, _ = io.WriteString(c, "POST /api/write HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n"+
				"Transfer-Encoding: chunked\r\n\r\n"+strings.Repeat("ffff\r\n"+strings.Repeat("{", 0xffff)+"\r\n", 8))
		case 4:
			_, _ = fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n", name(r, 64), name(r, 64))
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<16))
	})
}

// pageStreams holds streams of the page, more than there may be, and reads none.
func (w *world) pageStreams() {
	h := hoard{most: 500}
	w.each(1, func(r *rand.Rand) {
		c, err := w.dialFrom(r, w.page)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			return
		}
		_, _ = io.WriteString(c, "GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
		h.add(c, r)
		time.Sleep(2 * time.Millisecond)
	})
}

// dialAPI is a connection to the API, which is refused as long as the user's other attacks hold too many; nil at the end.
func (w *world) dialAPI() *api.Conn {
	for w.more() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := api.Dial(ctx, api.Options{Socket: filepath.Join(w.dir, api.Socket)})
		cancel()
		if err == nil {
			return conn
		}
		w.note(err)
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// apiStreams holds all the streams that it can have, and reads none.
func (w *world) apiStreams() {
	ctx, cancel := context.WithDeadline(context.Background(), w.end)
	defer cancel()
	for w.more() {
		conn := w.dialAPI()
		if conn == nil {
			return
		}
		defer conn.Close()
		for range 16 {
			w.acts.Add(1)
			_, err := conn.Watch(ctx, &api.WatchRequest{IntervalNs: 1})
			w.note(err)
			_, err = conn.Slices(ctx, &api.SlicesRequest{})
			w.note(err)
			_, err = conn.Events(ctx, &api.EventsRequest{Follow: true})
			w.note(err)
		}
	}
}

// holdAPI keeps connections to the API's socket open without a word, or after the beginning of one.
func (w *world) holdAPI() {
	var held []int
	for w.more() {
		if len(held) == 1500 {
			time.Sleep(20 * time.Millisecond)
			unix.Close(held[0])
			held = held[1:]
		}
		fd, err := dial(unix.SOCK_STREAM, filepath.Join(w.dir, api.Socket))
		if err != nil {
			w.note(err)
			time.Sleep(5 * time.Millisecond)
			continue
		}
		if w.acts.Load()%2 == 0 {
			_, _ = unix.Write(fd, []byte("PRI * HTTP/2.0\r\n\r\nSM"))
		}
		held = append(held, fd)
	}
}

// frame is one of HTTP/2.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, byte(stream >> 24), byte(stream >> 16),
		byte(stream >> 8), byte(stream)}, payload...)
}

// apiJunk speaks HTTP/2 badly: frames of every kind with anything in them, streams opened and reset, pings and settings
// without end, and no HTTP/2 at all.
func (w *world) apiJunk() {
	w.each(2, func(r *rand.Rand) {
		fd, err := dial(unix.SOCK_STREAM, filepath.Join(w.dir, api.Socket))
		if err != nil {
			w.note(err)
			time.Sleep(5 * time.Millisecond)
			return
		}
		defer unix.Close(fd)
		var b bytes.Buffer
		if r.IntN(4) == 0 {
			b.WriteString(name(r, 4096))
		} else {
			b.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			b.Write(frame(4, 0, 0, nil))
		}
		how := r.IntN(4)
		for n := range 200 + r.IntN(2000) {
			stream := uint32(2*n + 1)
			switch how {
			case 0:
				b.Write(frame(6, 0, 0, make([]byte, 8))) // ping
				b.Write(frame(4, 0, 0, nil))             // settings
			case 1: // headers, then their end: method POST by the static table
				b.Write(frame(1, 4, stream, []byte{0x83, 0x86, 0x84}))
				b.Write(frame(3, 0, stream, make([]byte, 4)))
			case 2: // headers without end
				b.Write(frame(1, 0, 1, []byte{0x83}))
				b.Write(frame(9, 0, 1, bytes.Repeat([]byte{0x40, 1, 'a', 1, 'b'}, 200)))
			case 3:
				b.Write(frame(byte(r.IntN(12)), byte(r.Uint32()), r.Uint32()>>1, []byte(name(r, r.IntN(100)))))
			}
		}
		for data := b.Bytes(); len(data) > 0; {
			n, err := unix.Write(fd, data)
			if err != nil {
				break
			}
			data = data[n:]
		}
	})
}
