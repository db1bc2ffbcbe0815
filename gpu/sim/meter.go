package sim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/sim/wire"
)

// meter implements gpu.Meter. The hardware notes turns all the time and remembers the last 8192 of each device.
type meter struct {
	client *wire.Client // of its own: it keeps nobody waiting, and nobody keeps it
	uuid   gpu.UUID
	device int
	next   uint64 // number of the first turn that is not known, or was not finished
}

// meterTimeout bounds how long a hardware process may take to answer a meter.
const meterTimeout = 10 * time.Second

// Meter notes turns from the next switch on. Times are in device time, as an event's or a kernel's: it follows the wall
// clock, and stands still while the host is too slow for the device. While programs are confined to parts of a device
// they run at the same time, and there are no turns: Meter fails, or if it happens later Turns does, with an error that
// wraps errors.ErrUnsupported. Like a program, a meter keeps the hardware running until it is closed.
func (i *Inventory) Meter(uuid gpu.UUID) (gpu.Meter, error) {
	_, index, err := i.find(uuid)
	if err != nil {
		return nil, err
	}
	client, err := wire.Dial(i.hardware.Socket, meterTimeout)
	if err != nil {
		return nil, fmt.Errorf("meter software GPU %s: %w", uuid, err)
	}
	m := &meter{client: client, uuid: uuid, device: index}
	if _, m.next, err = m.ask(math.MaxUint64); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return m, nil
}

// ask asks for turns.
func (m *meter) ask(since uint64) ([]wire.Turn, uint64, error) {
	turns, next, err := m.client.Turns(m.device, since)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil, 0, fmt.Errorf("software GPU %s takes no turns, because programs are confined to some of its units and run "+
			"at the same time as others: %w", m.uuid, err)
	case err != nil:
		return nil, 0, fmt.Errorf("ask software GPU %s for its turns: %w", m.uuid, err)
	}
	return turns, next, nil
}

// mostAnswers is how many answers Turns takes together at most, more than there can be turns remembered: it returns even
// if the device switched faster than it reads.
const mostAnswers = 16

// Turns implements gpu.Meter. Of more than 8192 turns that have ended since the call before, it returns the last 8192.
func (m *meter) Turns(turns []gpu.Turn) ([]gpu.Turn, error) {
	for range mostAnswers {
		answer, next, err := m.ask(m.next)
		if err != nil {
			return turns, err
		}
		for _, t := range answer {
			turns = append(turns, gpu.Turn{PID: int(t.PID), Start: int64(t.Start), End: int64(t.End), Unfinished: t.Unfinished != 0})
		}
		m.next = next
		if n := len(answer); n < wire.MaxTurns || answer[n-1].Unfinished != 0 {
			break
		}
	}
	return turns, nil
}

// Close implements gpu.Meter.
func (m *meter) Close() error {
	if err := m.client.Close(); err != nil {
		return fmt.Errorf("end the meter of software GPU %s: %w", m.uuid, err)
	}
	return nil
}
