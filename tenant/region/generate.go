package region

//go:generate go run ./gen ../liblgpu
