package sim_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/sim"
)

// TestInstances: a GPU in MIG mode is followed by its instances, which have numbers and memory of their own, and no energy.
func TestInstances(t *testing.T) {
	shape, err := sim.ParseShape("2x1GiB,sms=14,context=16MiB,mig=3g+1g")
	if err != nil {
		t.Fatal(err)
	}
	i, devices := inventory(t, shape)
	var ordinals []string
	for n, d := range devices {
		ordinals = append(ordinals, d.Ordinal())
		whole := devices[n/3*3]
		description, err := i.Describe(d.UUID)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := i.Facts(d.UUID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = i.Energy(d.UUID)
		if n%3 == 0 {
			if d.MIG() || !d.Partitioned || d.Memory != 1<<30 || d.Units != 14 || len(description.Links) != 1 || err != nil || facts.Power == nil {
				t.Errorf("%+v, %+v, %+v, %v", d, description, facts, err)
			}
			continue
		}
		memory, units := uint64(512<<20), 6
		if n%3 == 2 {
			memory, units = 128<<20, 2
		}
		if d.Parent != whole.UUID || d.ParentIndex != whole.Index || d.Partitioned || d.Memory != memory || d.Units != units ||
			d.GPUInstance != n%3 || d.ComputeInstance != 0 || d.PCI != whole.PCI || d.Identity()[:4] != "MIG-" {
			t.Errorf("%+v", d)
		}
		if len(description.Links) != 0 || !errors.Is(err, errors.ErrUnsupported) || facts.Power != nil || facts.Energy != nil {
			t.Errorf("%+v, %+v, %v", description, facts, err)
		}
	}
	if want := []string{"0", "0:0", "0:1", "1", "1:0", "1:1"}; !slices.Equal(ordinals, want) {
		t.Errorf("devices %v, not %v", ordinals, want)
	}
	if usable := gpu.Usable(devices); len(usable) != 4 {
		t.Errorf("programs can use %v", usable)
	}
}

func TestInventory(t *testing.T) {
	shape := sim.Shape{Devices: 2, Memory: 512 << 20, Units: 4, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9,
		Context: 16 << 20}
	dir := t.TempDir()
	listener, err := sim.Listen(sim.SocketPath(dir, shape))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sim.Serve(t.Context(), listener, shape, sim.ServeOptions{}) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	hardware, err := sim.Start(shape, sim.StartOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	i := gpusim.New(hardware)
	devices, err := i.Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%v, %v", devices, err)
	}
	for n, d := range devices {
		if d.Index != n || d.Memory != shape.Memory || d.Units != shape.Units || d.MIG() || d.Node != "" ||
			d.Key() != d.UUID.String() {
			t.Errorf("device %d is %+v", n, d)
		}
		f, err := i.Facts(d.UUID)
		if err != nil || f.MemoryUsed > shape.Memory || f.Utilisation != 0 || len(f.Processes) != 0 {
			t.Errorf("device %d: %+v, %v", n, f, err)
		}
		if *f.Power != 40_000 || *f.Temperature != 30 {
			t.Errorf("device %d draws %d mW and has %d °C", n, *f.Power, *f.Temperature)
		}
		if mj, err := i.Energy(d.UUID); mj < *f.Energy || err != nil {
			t.Errorf("the counter of device %d is %d mJ after %d, %v", n, mj, *f.Energy, err)
		}
	}
	if _, err := i.Facts(gpu.UUID{1}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown device: %v", err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Facts(devices[0].UUID); err == nil {
		t.Error("facts after the end")
	}
}
