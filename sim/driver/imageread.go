package driver

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// imageReader reads an image out of the program's memory, front to back.
type imageReader struct {
	call     *wire.Call
	at, left uint64
}

// read fills b.
func (r *imageReader) read(b []byte) error {
	if uint64(len(b)) > r.left {
		return fmt.Errorf("%w: it ends %d bytes early", errImage, uint64(len(b))-r.left)
	}
	if err := r.call.ReadHost(wire.HostAddr(r.at), b); err != nil {
		return err
	}
	r.at, r.left = r.at+uint64(len(b)), r.left-uint64(len(b))
	return nil
}

// next reads n bytes; that there are so many is checked before there is memory for them.
func (r *imageReader) next(n uint64) ([]byte, error) {
	if n > r.left {
		return nil, fmt.Errorf("%w: %d bytes of %d", errImage, r.left, n)
	}
	b := make([]byte, n)
	return b, r.read(b)
}

// loadFrom reads a whole image.
func (p *Process) loadFrom(r *imageReader, pairs []wire.CUcheckpointGpuPair) (Result, error) {
	img, codes, err := readObjects(r)
	if err != nil {
		return resultOf(err), err
	}
	to, res, err := p.d.mapDevices(img.Devices, pairs)
	if err != nil {
		return res, err
	}
	unlock := p.lock()
	physicals, res, err := p.load(img, codes, to)
	held := saved{physicals: physicals}
	held.hold() // a program that frees them meanwhile has itself to thank
	unlock()
	if err != nil {
		return res, err
	}
	defer func() {
		defer p.lock()()
		held.release()
	}()
	if err := readPieces(r, physicals); err != nil {
		return resultOf(err), err
	}
	return success, nil
}

// resultOf is what the program is told of an error of reading.
func resultOf(err error) Result {
	if errors.Is(err, errImage) {
		return errInvalidImage
	}
	return errOperatingSystem
}

// readObjects reads an image up to the device memory.
func readObjects(r *imageReader) (*image, []*code, error) {
	b, err := r.next(headerSize)
	if err != nil {
		return nil, nil, err
	}
	h, err := parseHeader(b)
	if err != nil {
		return nil, nil, err
	}
	if b, err = r.next(h.objects); err != nil {
		return nil, nil, err
	}
	img, err := h.parseObjects(b)
	if err != nil {
		return nil, nil, err
	}
	codes, err := readCodes(r, img.Codes, h.sources)
	return img, codes, err
}

// readCodes reads and compiles what the process has loaded.
func readCodes(r *imageReader, list []codeImage, sources uint64) ([]*code, error) {
	var codes []*code
	for i, from := range list {
		c := &code{size: from.Size, options: ptx.Options{MaxRegs: from.MaxRegs}}
		if len(from.Units) == 0 || from.Size > maxImage || from.MaxRegs < 0 {
			return nil, fmt.Errorf("%w: code %d has %d units and %d bytes", errImage, i, len(from.Units), from.Size)
		}
		for _, u := range from.Units {
			if u.Size < 0 || uint64(u.Size) > sources {
				return nil, fmt.Errorf("%w: code %d has %d bytes of source", errImage, i, u.Size)
			}
			text, err := r.next(uint64(u.Size))
			if err != nil {
				return nil, err
			}
			sources -= uint64(u.Size)
			c.units = append(c.units, ptx.Unit{Name: u.Name, Source: text})
		}
		var err error
		if c.parsed, err = ptx.ParseUnits(c.options, c.units...); err != nil {
			return nil, fmt.Errorf("%w: code %d: %w", errImage, i, err)
		}
		codes = append(codes, c)
	}
	if sources != 0 {
		return nil, fmt.Errorf("%w: %d bytes of source are no code's", errImage, sources)
	}
	return codes, nil
}

// maxImage bounds what a program loads at a time: as package wire does.
const maxImage = 256 << 20

// readPieces reads the device memory. Nothing is locked.
func readPieces(r *imageReader, physicals []*physical) error {
	buf := make([]byte, pieceMost)
	for n := uint64(0); ; n++ {
		head, err := r.next(pieceHead)
		if err != nil {
			return err
		}
		p := parsePiece(head)
		if p.physical == endOfImage {
			if p.offset != n || r.left != 0 {
				return fmt.Errorf("%w: it ends after %d pieces of %d, and %d bytes follow", errImage, n, p.offset, r.left)
			}
			return nil
		}
		if uint64(p.physical) >= uint64(len(physicals)) || p.size > pieceMost {
			return fmt.Errorf("%w: piece %d of memory %d has %d bytes", errImage, n, p.physical, p.size)
		}
		data := buf[:p.size]
		if err := r.read(data); err != nil {
			return err
		}
		if sum := crc32.Checksum(data, castagnoli); sum != p.sum {
			return fmt.Errorf("%w: the sum of piece %d is %#x, not %#x", errImage, n, sum, p.sum)
		}
		if err := physicals[p.physical].frames.Write(data, p.offset); err != nil {
			return fmt.Errorf("%w: piece %d: %w", errImage, n, err)
		}
	}
}
