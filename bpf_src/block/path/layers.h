/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stacked devices (dm, md): a bio that is sent to one has a slot like others (`layer`), from its Q to its C. The bios
 * that the device makes of it are linked by its sector, which the device reports (block_bio_remap) before it sends a
 * new bio, in any task. So a request below belongs to the operation above, even if a worker sends it.
 */
#ifndef WPT_PATH_LAYERS_H
#define WPT_PATH_LAYERS_H

#include "block/path/state.h"

#define LAYERS 256

struct layer_entry {
	__u32 dev; /* 0: free */
	__u32 slot; /* in layer_cells */
};

struct layer_entry layers[LAYERS];

/* Bios of a stacked device, by device and block_op. */
enum layer_stage {
	LAYER_STAGE_LAYERS, /* nothing of it was in flight below */
	LAYER_STAGE_DEVICE, /* from the first Q to the last C below */
	LAYER_STAGE_TOTAL,
	LAYER_STAGES,
};
EXPORT_ENUM(layer_stage);

struct layer_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	struct hist stages[LAYER_STAGES];
};
CELLS(layer_cells, layer_cell);

struct upper_key {
	__u64 sector;
	__u64 dev;
};

struct upper {
	__u64 queued; /* identifies the bio as long as the slot has it */
	__u32 place;
	__u32 unused;
};

/* Sectors at which bios of layers begin, also after a split. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct upper_key);
	__type(value, struct upper);
} uppers SEC(".maps");

/* The index of a layer, or LAYERS. Global, with scalar arguments. */
__noinline __u32 layer_of(__u32 dev)
{
	__u32 at = device_place(dev, LAYERS);
	__u32 probe;

	for (probe = 0; probe < DEVICE_PROBES; probe++) {
		struct layer_entry *entry = &layers[(at + probe) & (LAYERS - 1)];

		if (!entry->dev)
			break;
		if (entry->dev == dev)
			return entry->slot;
	}
	return LAYERS;
}

__noinline int note_upper(__u32 place, __u64 sector)
{
	struct bio_state *state = bio_at(place);
	struct upper_key key = {.sector = sector, .dev = state->done.dev};
	struct upper upper = {.queued = state->done.times.queued, .place = state->place};

	bpf_map_update_elem(&uppers, &key, &upper, BPF_ANY);
	return 0;
}

/* The slot belongs to a bio of a layer. */
static __always_inline void begin_layer(struct bio_state *state, __u32 slot, __u64 sector, __u32 bytes)
{
	state->layer = true;
	state->done.slot = slot;
	state->done.sector = sector;
	state->done.bytes = bytes;
	state->done.times.completed = 0;
	note_upper(state->place, sector);
}

/* A layer splits its own bio: dm reports the bio itself, others its front. Bios made of either are found. */
static __always_inline bool cut_layer(__u64 bio, struct bio_state *rest, __u64 sector)
{
	if (!rest || !rest->layer)
		rest = find_bio(bio);
	if (!rest || !rest->layer)
		return false;
	note_upper(rest->place, sector);
	return true;
}

/* A bio that begins in the middle of another is looked up in steps of a page, as far back as this. */
#define STEPS_BACK 64
#define STEP_SECTORS 8

static __always_inline bool has_sector(struct bio_state *state, __u64 dev, __u64 sector)
{
	return state->layer && state->done.dev == dev && sector - state->done.sector <= state->done.bytes >> 9;
}

/* The slot of the layer's bio that contains a sector, or BIOS. */
__noinline __u32 upper_at(__u64 dev, __u64 sector)
{
	struct upper_key key = {.sector = sector, .dev = dev};
	int step;

	for (step = 0; step < STEPS_BACK; step++) {
		struct upper *upper = bpf_map_lookup_elem(&uppers, &key);

		if (upper) {
			struct bio_state *state = bio_at(upper->place);

			if (state->bio && state->done.times.queued == upper->queued && has_sector(state, dev, sector))
				return state->place;
		}
		if (key.sector < STEP_SECTORS)
			break;
		key.sector -= STEP_SECTORS;
	}
	return BIOS;
}

/*
 * A stacked device is about to send on a bio that it made of the one at this sector. There may be several: if
 * the current task has one there, it is that one.
 */
static __noinline int on_bio_remap(__u64 bio, __u64 dev, __u64 sector)
{
	struct bio_state *state, *upper = NULL;
	struct op_state *op;
	__u32 place;

	if (layer_of(dev) == LAYERS)
		return 0; /* a partition */
	op = op_of(bpf_get_current_task());
	if (op && op->above)
		upper = find_bio(op->above);
	if (!upper || !has_sector(upper, dev, sector)) {
		place = upper_at(dev, sector);
		if (place < BIOS)
			upper = bio_at(place);
	}
	/* This very bio is sent on: D finds it. */
	if (!upper || !upper->layer || upper->bio == bio)
		return 0;
	state = bio_for(bio);
	if (!state)
		return 0;
	__builtin_memset(&state->done, 0, sizeof(state->done));
	__builtin_memset(&state->apart, 0, 4);
	state->bio = bio;
	state->kind = BIO_KIND_LINKED;
	state->above = upper->place;
	state->above_ns = upper->done.times.queued;
	state->top_ns = upper->done.events.below & EVENT_BELOW ? upper->top_ns : upper->done.times.queued;
	return 0;
}

/* The bio above, as long as it has not ended. */
static __always_inline struct bio_state *upper_of(struct bio_state *state)
{
	struct bio_state *upper = bio_at(state->above);

	return upper->layer && upper->bio && upper->done.times.queued == state->above_ns ? upper : NULL;
}

/* A bio made of another one has ended. */
static __always_inline void end_below(struct bio_state *state, __u64 now)
{
	struct bio_state *upper = upper_of(state);

	if (upper && upper->done.times.completed < now)
		upper->done.times.completed = now;
}

static __always_inline void count_layer(struct bio_state *state, __u32 slot, __u64 below, __u64 now, bool failed)
{
	__u64 total = minus(now, state->done.times.queued);
	struct layer_cell *cell;

	cell = cell_at(&layer_cells, slot * BLOCK_OPS + (state->empty ? BLOCK_OP_FLUSH : state->op_kind));
	if (!cell)
		return;
	COUNT_MORE(cell->failed, failed);
	COUNT_MORE(cell->bytes, state->done.bytes);
	add(&cell->stages[LAYER_STAGE_LAYERS], minus(total, below));
	add(&cell->stages[LAYER_STAGE_DEVICE], below);
	hist_add_counted(&cell->stages[LAYER_STAGE_TOTAL], total);
	COUNT(cell->finished);
}

/* It ended without a request: no tag was free and it does not wait for one, or the device is going away. */
static __noinline int end_refused(struct bio_state *state)
{
	struct op_state *op;

	if (!state || state->kind == BIO_KIND_HEAD)
		return 0;
	state->bio = 0;
	if (!state->task || state->kind == BIO_KIND_ABOVE)
		return 0;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED || state->done.times.queued < op->start_ns || !op->made)
		return 0;
	op->made--;
	if (state->apart & BIO_APART_READAHEAD)
		op->readahead--;
	return 0;
}

static __noinline int on_bio_complete(struct bio *bio)
{
	struct bio_state *state = find_bio((__u64)bio);
	__u64 now = bpf_ktime_get_ns();
	struct times *times;

	if (!state)
		return 0;
	if (!state->layer)
		return end_refused(state);
	times = &state->done.times;
	/* D is when the first one below was queued, C when the last one ended. */
	count_layer(state, state->done.slot, times->issued ? minus(times->completed, times->issued) : 0, now,
		    BPF_CORE_READ(bio, bi_status));
	if (state->task) {
		struct op_state *op = op_at(state->op);

		if (op->task == state->task)
			op->above_done_ns = now;
	}
	if (state->done.events.below)
		end_below(state, now);
	state->bio = 0;
	return 0;
}

#endif
