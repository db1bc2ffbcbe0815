package shmem

import (
	"fmt"
	"time"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
)

// loads prints how long each module of kernels takes to load.
func loads() error {
	d, err := cuda.Load()
	if err != nil {
		return err
	}
	ctx, err := d.Primary(0)
	if err != nil {
		return err
	}
	defer ctx.Release()
	return ctx.Do(func() error {
		all := time.Now()
		for _, name := range kernels.Modules() {
			begun := time.Now()
			m, err := d.ModuleLoad(name.Image())
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			loaded := time.Now()
			n, err := d.LoadFunctions(m)
			fmt.Printf("%-16s %9v, %d functions %9v %v\n", name, loaded.Sub(begun), n, time.Since(loaded), err)
		}
		fmt.Println("all", time.Since(all))
		return nil
	})
}
