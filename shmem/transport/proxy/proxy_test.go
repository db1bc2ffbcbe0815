package proxy

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// words are n queues' words in one block, as the transport lays them out, and what was rung.
func words(n int) ([]Word, []uint64, chan mlx5.Doorbell) {
	posted, records := make([]uint64, n), make([]uint64, n)
	rung := make(chan mlx5.Doorbell, 1<<16)
	list := make([]Word, n)
	for i := range list {
		record := unsafe.Slice((*byte)(unsafe.Pointer(&records[i])), 8)[4:]
		list[i] = Word{Posted: unsafe.Slice((*byte)(unsafe.Pointer(&posted[i])), 8), Record: record, Number: uint32(0x100 + i),
			Ring: func(b [8]byte) {
				d := mlx5.ParseDoorbell(&b)
				if got := binary.BigEndian.Uint32(record); got != uint32(d.Index) {
					panic("rung before the record was written")
				}
				rung <- d
			}}
	}
	return list, posted, rung
}

func TestPostsEachQueueMonotonically(t *testing.T) {
	list, posted, rung := words(5)
	posted[2] = 65530 // begins close to the wrap
	p, err := Start(list)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	random := rand.New(rand.NewPCG(1, 2))
	want := make(map[uint32]uint64)
	seen := make(map[uint32]uint64)
	for i := range posted {
		seen[uint32(0x100+i)] = posted[i]
	}
	take := func(d mlx5.Doorbell) {
		step := uint64(d.Index - uint16(seen[d.Queue]))
		if d.Opcode != 0 || d.Segments != 0 || step == 0 || step > 2000*32 {
			t.Fatalf("queue %#x rung with %+v after %d", d.Queue, d, seen[d.Queue])
		}
		seen[d.Queue] += step
	}
	for range 2000 {
		i := random.IntN(len(posted))
		want[uint32(0x100+i)] = atomic.AddUint64(&posted[i], 1+random.Uint64N(32))
		for len(rung) > 0 {
			take(<-rung)
		}
	}
	deadline := time.After(10 * time.Second)
	for queue, value := range want {
		for seen[queue] != value {
			select {
			case d := <-rung:
				take(d)
			case <-deadline:
				t.Fatalf("queue %#x was posted up to %d, rung up to %d", queue, value, seen[queue])
			}
		}
	}
}

func TestIdleThreadStillPosts(t *testing.T) {
	list, posted, rung := words(1)
	p, err := Start(list)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.Sleep(10 * busy) // it is asleep by now
	atomic.StoreUint64(&posted[0], 3)
	select {
	case d := <-rung:
		if d.Index != 3 || d.Queue != 0x100 {
			t.Fatalf("rung with %+v", d)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("not rung")
	}
	if p.Posts() != 1 {
		t.Fatalf("%d posts", p.Posts())
	}
}

// What is raised before Close is rung when it returns.
func TestCloseLosesNothing(t *testing.T) {
	for range 50 {
		list, posted, rung := words(3)
		p, err := Start(list)
		if err != nil {
			t.Fatal(err)
		}
		atomic.StoreUint64(&posted[1], 7)
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Fatal(err)
		}
		if d := <-rung; d.Index != 7 || d.Queue != 0x101 {
			t.Fatalf("rung with %+v", d)
		}
	}
}

func TestMisalignedWordsAreRefused(t *testing.T) {
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&make([]uint64, 4)[0])), 32)
	for _, w := range []Word{
		{Posted: memory[1:9], Record: memory[16:20]},
		{Posted: memory[:8], Record: memory[17:21]},
		{Posted: memory[:7], Record: memory[16:20]},
		{Posted: memory[:8], Record: memory[16:19]},
		{},
	} {
		if _, err := Start([]Word{w}); !errors.Is(err, ErrWord) {
			t.Errorf("words of %d and %d bytes: %v", len(w.Posted), len(w.Record), err)
		}
	}
}
