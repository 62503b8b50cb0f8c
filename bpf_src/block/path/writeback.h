/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The task that dirtied a page of the page cache, and when: looked up when a bio writes it back, which is done by a
 * worker of the kernel or for another task. It is kept by page frame, and stays there until the frame becomes dirty
 * again: a folio may be written by several bios, and by those of each device of a stack.
 */
#ifndef WPT_PATH_WRITEBACK_H
#define WPT_PATH_WRITEBACK_H

#include "block/path/owner.h"
#include "lib/filter.h"

/* A power of two less 1, of the map below. */
const volatile __u32 frame_mask;

struct dirty_frame {
	__u64 page; /* the first one of its folio; 0: free */
	__u64 since_ns;
	__u64 cgroup;
	__u32 check; /* the file: a frame may be reused for another file without becoming dirty */
	__u32 tgid;
	__u32 tid; /* 0: a filter leaves it out */
	__u32 started; /* where owners are processes or threads; where they are statements, the statement_row */
	__u64 statement; /* and its hash */
	char comm[NAME_BYTES];
};

/* As large as memory requires, which is too large for a variable. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dirty_frame);
} dirty_frames SEC(".maps");

/* Writeback, by device. */
struct writeback_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 untimed; /* of the finished: only counted */
	struct hist stages[WRITEBACK_STAGES];
};
CELLS(writeback_cells, writeback_cell);

/* Of each slot of `bios`. */
struct written {
	__u64 dirtied_ns; /* when what it writes became dirty; 0: not known, or not by writing to the page cache */
	__u64 bytes; /* of this bio */
	__u64 completed_ns;
};

struct written written[BIOS] SEC(".bss.written");

static __always_inline struct written *written_by(struct bio_state *state)
{
	__u32 place = state->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(BIOS - 1));
	return &written[place];
}

/* --- Page frames ---------------------------------------------------------------------------------------------------- */

#define FRAME_PROBES 4
#define PAGE_STRUCT_SHIFT 6 /* mostly 64 bytes; where not, neighbours share a slot and go to the next ones */

/* Neighbouring frames have neighbouring slots: as long as memory is not larger than the table, each has its own. */
static __always_inline struct dirty_frame *frame_at(__u64 page, __u32 probe)
{
	__u32 place = (probe ? hash(page) + probe : lower_half(page) >> PAGE_STRUCT_SHIFT) & frame_mask;

	return bpf_map_lookup_elem(&dirty_frames, &place);
}

static __always_inline __u32 check_of(__u64 mapping, __u64 index)
{
	return hash(mapping) ^ (__u32)index;
}

#define PAGE_BIT(name) (1UL << bpf_core_enum_value(enum pageflags, PG_##name))

/* Discarded and never written, or not dirty any more. Flags are the first word of a page. */
static __always_inline bool is_stale(__u64 page)
{
	__u64 flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), (void *)page);
	return !(flags & (PAGE_BIT(dirty) | PAGE_BIT(writeback) | PAGE_BIT(locked)));
}

static __noinline struct dirty_frame *claim_frame(__u64 page)
{
	__u32 probe;

	for (probe = 0; probe < FRAME_PROBES; probe++) {
		struct dirty_frame *frame = frame_at(page, probe);

		if (frame && frame->page == page)
			return frame;
	}
	for (probe = 0; probe < FRAME_PROBES; probe++) {
		struct dirty_frame *frame = frame_at(page, probe);

		if (frame && (!frame->page || is_stale(frame->page)))
			return frame;
	}
	return NULL;
}

static __always_inline struct dirty_frame *find_frame(__u64 page)
{
	__u32 probe;

	for (probe = 0; probe < FRAME_PROBES; probe++) {
		struct dirty_frame *frame = frame_at(page, probe);

		if (frame && frame->page == page)
			return frame;
	}
	return NULL;
}

/* --- Pages and folios ----------------------------------------------------------------------------------------------- */

/* Bit 0 says that it is not the first page of its folio. */
struct page___with_head {
	unsigned long compound_head;
} __attribute__((preserve_access_index));

/* 7.2 renamed it, as it may hold a mask for the address of the page, which is above all addresses of pages. */
struct page___with_info {
	unsigned long compound_info;
} __attribute__((preserve_access_index));

static __always_inline __u64 head_of(__u64 page)
{
	struct page___with_head *old = (void *)page;
	struct page___with_info *new = (void *)page;
	__u64 head;

	if (bpf_core_field_exists(old->compound_head))
		head = BPF_CORE_READ(old, compound_head);
	else
		head = BPF_CORE_READ(new, compound_info);
	if (!(head & 1))
		return page;
	return head < page ? head - 1 : page & head;
}

/* A folio begins like its first page; commit 7b230db3b8d3 ("mm: Introduce struct folio", v5.16) gave it a name. */
struct page___like_folio {
	struct address_space *mapping;
	unsigned long index;
} __attribute__((preserve_access_index));

struct folio___like_page {
	struct address_space *mapping;
	unsigned long index;
} __attribute__((preserve_access_index));

struct page_of_file {
	struct address_space *mapping;
	__u64 index; /* in pages */
};

/* Of the first page of a folio. */
static __always_inline struct page_of_file page_of_file(__u64 page)
{
	struct folio___like_page *folio = (void *)page;
	struct page___like_folio *old = (void *)page;
	struct page_of_file found;

	if (bpf_core_type_exists(struct folio___like_page)) {
		found.mapping = BPF_CORE_READ(folio, mapping);
		found.index = BPF_CORE_READ(folio, index);
	} else {
		found.mapping = BPF_CORE_READ(old, mapping);
		found.index = BPF_CORE_READ(old, index);
	}
	return found;
}

/* --- The file of a page --------------------------------------------------------------------------------------------- */

struct inode___with_aliases {
	struct {
		void *first;
	} i_dentry;
} __attribute__((preserve_access_index));

struct dentry___in_union {
	union {
		struct {
			void *next;
		} d_alias;
	} d_u;
} __attribute__((preserve_access_index));

/* The union of 7.2 has no name. */
struct dentry___flat {
	struct {
		void *next;
	} d_alias;
} __attribute__((preserve_access_index));

struct super_block___with_list {
	struct {
		void *next;
	} s_mounts;
} __attribute__((preserve_access_index));

struct mount___in_list {
	struct {
		void *next;
	} mnt_instance;
} __attribute__((preserve_access_index));

/* 6.18 has a chain where there was a list. */
struct super_block___with_first {
	struct mount *s_mounts;
} __attribute__((preserve_access_index));

/* Some name of an inode; NULL where there is none, as of a block device. */
static __always_inline struct dentry *name_of(struct inode *inode)
{
	struct inode___with_aliases *named = (void *)inode;
	struct dentry___flat *flat = NULL;
	void *alias = BPF_CORE_READ(named, i_dentry.first);

	if (!alias)
		return NULL;
	if (bpf_core_field_exists(flat->d_alias))
		return alias - bpf_core_field_offset(struct dentry___flat, d_alias);
	return alias - bpf_core_field_offset(struct dentry___in_union, d_u.d_alias);
}

/* Some place where it is mounted. */
static __always_inline struct mount *mount_of(struct inode *inode)
{
	struct super_block *super = BPF_CORE_READ(inode, i_sb);
	struct super_block___with_first *chained = (void *)super;
	struct super_block___with_list *listed = (void *)super;
	struct mount___in_list *old = NULL;

	if (bpf_core_field_exists(old->mnt_instance))
		return (void *)BPF_CORE_READ(listed, s_mounts.next) -
		       bpf_core_field_offset(struct mount___in_list, mnt_instance);
	return BPF_CORE_READ(chained, s_mounts);
}

static __always_inline bool inode_passes(struct inode *inode)
{
	struct dentry *dentry;
	struct mount *mount;

	if (filter_inode_dev && !inode_matches(inode, false))
		return false;
	if (!filter_directory_dev)
		return true;
	dentry = name_of(inode);
	mount = mount_of(inode);
	return dentry && mount && is_below((__u64)dentry, (__u64)mount + bpf_core_field_offset(struct mount, mnt));
}

/* --- A page becomes dirty ------------------------------------------------------------------------------------------- */

/* Filtered here, where the current task is the writer. */
static __noinline bool dirtier_passes(struct inode *inode)
{
	return task_matches() && (!filter_file || inode_passes(inode));
}

/* The call that writes, or the task that stores to mapped memory. */
static __noinline void note_statement(struct dirty_frame *frame)
{
	struct op_state *op = op_of(bpf_get_current_task());
	__u32 number = op ? op->owner : 0;
	struct owner *owner;

	if (!frame)
		return;
	if (!number)
		number = owner_of_statement(OPS);
	frame->started = STATEMENT_ROW_NONE;
	if (number == OWNER_OTHERS)
		return;
	owner = owner_at(number - 1);
	frame->statement = owner->key.id;
	frame->started = owner->key.more;
}

static __always_inline int note_dirty(__u64 page, __u64 index, struct address_space *mapping, bool trusted)
{
	struct dirty_frame *frame;
	__u64 ids;

	if (!tracing || !mapping)
		return 0;
	frame = frame_at(page, 0);
	if (!frame || (frame->page && frame->page != page)) {
		frame = claim_frame(page);
		if (!frame) {
			COUNT(loss[PATH_CAUSE_DIRTY_FULL]);
			return 0;
		}
	}
	ids = bpf_get_current_pid_tgid();
	frame->page = page;
	frame->check = check_of((__u64)mapping, index);
	frame->tgid = ids >> 32;
	frame->tid = filtering && !dirtier_passes(FIELD(trusted, mapping, host)) ? 0 : ids;
	if (owner_by == OWNER_BY_PROCESS || owner_by == OWNER_BY_THREAD)
		frame->started = started(owner_by);
	if (BY_STATEMENT(owner_by))
		note_statement(frame);
	frame->cgroup = bpf_get_current_cgroup_id();
	bpf_get_current_comm(frame->comm, sizeof(frame->comm));
	frame->since_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_folio_dirty(struct folio *folio, struct address_space *mapping, bool trusted)
{
	return note_dirty((__u64)folio, trusted ? folio->index : page_of_file((__u64)folio).index, mapping, trusted);
}

/* As older kernels, 5.10 among them, have it. */
static __always_inline int on_page_dirty(struct page *page, struct address_space *mapping, bool trusted)
{
	return note_dirty((__u64)page, trusted ? page->index : page_of_file((__u64)page).index, mapping, trusted);
}

/* --- A bio writes it ------------------------------------------------------------------------------------------------ */

/* The first page that a bio still has to do. */
static __always_inline __u64 first_page(struct bio *bio)
{
	struct bio_vec *vectors = BPF_CORE_READ(bio, bi_io_vec);
	struct bio_vec *vector =
		(void *)vectors + BPF_CORE_READ(bio, bi_iter.bi_idx) * bpf_core_type_size(struct bio_vec);
	__u64 offset = BPF_CORE_READ(vector, bv_offset) + BPF_CORE_READ(bio, bi_iter.bi_bvec_done);

	return (__u64)BPF_CORE_READ(vector, bv_page) + (offset >> page_shift) * bpf_core_type_size(struct page);
}

/* Where in which file a bio still has to begin. */
static __always_inline struct page_of_file first_of_file(struct bio *bio)
{
	__u64 page = first_page(bio);
	__u64 head = head_of(page);
	struct page_of_file found = page_of_file(head);

	found.index += (page - head) / bpf_core_type_size(struct page);
	return found;
}

/* The task that dirtied the first page that a bio writes. */
static __noinline struct dirty_frame *dirtier_of(struct bio *bio)
{
	__u64 page = head_of(first_page(bio));
	struct dirty_frame *frame = find_frame(page);
	struct page_of_file of;

	/* The journal of ext4 writes copies of metadata from where they are; these are not dirty then. */
	if (!frame || is_stale(page))
		return NULL;
	/*
	 * Direct I/O says that more will follow, which writeback never does. So does that journal since
	 * commit 6a3afb6ac6df ("jbd2: increase the journal IO's priority", v6.8).
	 */
	if (BPF_CORE_READ(bio, bi_opf) >> bpf_core_enum_value(enum req_flag_bits, __REQ_IDLE) & 1)
		return NULL;
	of = page_of_file(page);
	return frame->check == check_of((__u64)of.mapping, of.index) ? frame : NULL;
}

/* At Q. Its owner is the task that dirtied it, whichever task sends it. */
static __noinline int note_dirtier(struct bio_state *state, struct bio *bio)
{
	struct dirty_frame *frame;
	struct written *mine;

	if (!state)
		return 0;
	frame = dirtier_of(bio);
	if (!frame || !frame->tid)
		return 0;
	mine = written_by(state);
	mine->dirtied_ns = frame->since_ns;
	/* Clocks of two CPUs may differ by some cycles. */
	if (mine->dirtied_ns > state->done.times.queued)
		mine->dirtied_ns = state->done.times.queued;
	mine->bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	state->tid = frame->tid;
	state->tgid = frame->tgid;
	state->cgroup = frame->cgroup;
	__builtin_memcpy(state->comm, frame->comm, sizeof(state->comm));
	return 0;
}

static __always_inline void follow(struct bio_state *state, struct bio *bio)
{
	written_by(state)->dirtied_ns = 0;
	if (state->op_kind == BLOCK_OP_WRITE && !state->empty)
		note_dirtier(state, bio);
}

/* Its front becomes a bio of its own. */
static __noinline int split_writeback(struct bio_state *front, struct bio_state *rest, struct bio *bio)
{
	struct written *mine, *whole;

	if (!front || !rest)
		return 0;
	mine = written_by(front);
	whole = written_by(rest);
	mine->dirtied_ns = whole->dirtied_ns;
	if (!whole->dirtied_ns)
		return 0;
	mine->bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	whole->bytes -= mine->bytes;
	front->tid = rest->tid;
	front->tgid = rest->tgid;
	front->cgroup = rest->cgroup;
	__builtin_memcpy(front->comm, rest->comm, sizeof(front->comm));
	return 0;
}

/* --- It was written ------------------------------------------------------------------------------------------------- */

/* `request` is the slot of the bio that represents the request. */
__noinline int count_writeback(__u32 place, __u32 request)
{
	struct bio_state *state = bio_at(place), *head = bio_at(request);
	struct written *mine = written_by(state);
	struct writeback_cell *cell;

	if (!mine->dirtied_ns)
		return 0;
	cell = cell_at(&writeback_cells, head->done.slot);
	if (!cell)
		return 0;
	cell->bytes += mine->bytes;
	if (head->done.error)
		cell->failed++;
	if (state->untimed || head->untimed) {
		cell->untimed++;
		cell->finished++;
		return 0;
	}
	mine->completed_ns = head->done.times.completed;
	if (mine->completed_ns < state->done.times.queued)
		mine->completed_ns = state->done.times.queued;
	add(&cell->stages[WRITEBACK_STAGE_DIRTY], state->done.times.queued - mine->dirtied_ns);
	add(&cell->stages[WRITEBACK_STAGE_WRITEBACK], mine->completed_ns - state->done.times.queued);
	add(&cell->stages[WRITEBACK_STAGE_TOTAL], mine->completed_ns - mine->dirtied_ns);
	cell->finished++;
	return 0;
}

#endif
