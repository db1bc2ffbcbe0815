module github.com/lgpu/lgpu

go 1.26.8
