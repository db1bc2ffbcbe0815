package driver

import (
	"fmt"
	"slices"
	"testing"
)

func TestVisibleDevices(t *testing.T) {
	d := &Driver{}
	for i := range 3 {
		d.devices = append(d.devices, &device{index: i, uuid: [16]byte{0xab, byte(i)}})
	}
	divided := &device{index: 3, uuid: [16]byte{0xcd, 3}}
	for i := range 2 {
		divided.instances = append(divided.instances, &device{index: 4 + i, uuid: [16]byte{0xcd, byte(4 + i)},
			instance: &instance{of: divided, number: i, compute: 1}})
	}
	d.devices = append(append(d.devices, divided), divided.instances...)
	d.shown = enumerated(d.devices)
	uuid := func(i int) string { return fmt.Sprintf("GPU-ab%02x0000-0000-0000-0000-000000000000", i) }
	for list, want := range map[string][]int{
		"":                      {},
		"0":                     {0},
		"2,0":                   {2, 0},
		" 1 , 2 ":               {1, 2},
		"0,3,1":                 {0},
		"-1":                    {},
		"1,1,2":                 {1},
		"none":                  {},
		uuid(2) + "," + uuid(0): {2, 0},
		"GPU-AB01":              {1},
		"GPU-ab":                {},
		"GPU-":                  {},
		uuid(1) + "0":           {},
		"MIG-cd05":              {5},
		"MIG-cd":                {},
		"MIG-cd04,MIG-cd05":     {4},
		"MIG-cd04,0":            {4},
		"0,MIG-cd04":            {0},
		"GPU-cd03":              {},
		"GPU-cd04":              {},
		"MIG-ab00":              {},
	} {
		got := []int{}
		for _, dev := range d.visibleDevices(list) {
			got = append(got, dev.index)
		}
		if !slices.Equal(got, want) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q shows %v, want %v", list, got, want)
		}
	}
}
