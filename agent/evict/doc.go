// Package evict keeps the node alive: it says when the node is short of memory, disk or
// processes, frees what nobody uses, and ends pods, least deserving first, before the
// kernel has to (KEP-30, node-pressure eviction). No coordinator is asked.
//
//	signals ─> Plan.Step ─┬─> conditions of the Node, which last for a while
//	(10 s, or the kernel  └─> a threshold to act on ─> Node.reclaim: images, then one pod
//	 tells of a stall)                                  by Rank, then the signals again
//
// One signal is no amount: MemoryStall is the time that is left to work while tasks wait for
// memory, measured by Stall.
//
// Besides, Storage ends pods that take more local storage than they are limited to.
package evict
