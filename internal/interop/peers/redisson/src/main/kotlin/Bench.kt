package watchlock.interop

import org.redisson.Redisson
import org.redisson.api.RedissonClient
import org.redisson.config.Config
import java.io.RandomAccessFile
import java.lang.invoke.MethodHandles
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel.MapMode.READ_WRITE
import java.util.concurrent.Semaphore
import java.util.concurrent.ThreadLocalRandom
import java.util.concurrent.TimeUnit.MICROSECONDS
import java.util.concurrent.TimeUnit.NANOSECONDS
import java.util.concurrent.TimeUnit.SECONDS
import kotlin.concurrent.thread

/** What a benchmark may ask for. Its clients are of its own and have Redisson's defaults. One show is on at a time. */
val benchmarks: Map<String, (Call) -> Any?> = mapOf(
    "gather" to { call -> stage(Crowd(call)) },
    "measure" to { onStage<Crowd>().phase = Phase.MEASURING },
    "measured" to { onStage<Crowd>().phase = Phase.MEASURED },
    "finish" to { onStage<Crowd>().finish() },
    "pair" to { call -> stage(Pair(call)) },
    "handoffs" to { call -> onStage<Pair>().play(call.long("nanos", 0)) },
    "leave" to { show?.close().also { show = null } },
)

@Volatile
private var show: AutoCloseable? = null

private fun stage(next: AutoCloseable) {
    show?.close()
    show = next
}

private inline fun <reified T> onStage(): T = show as? T ?: throw IllegalStateException("nothing to measure is on")

/** As patient as the other clients of the benchmark, and else as it comes. */
private fun connect(call: Call): RedissonClient {
    val config = Config()
    config.useSingleServer().setAddress(call.text("address")).timeout = 10_000
    return Redisson.create(config)
}

private fun RedissonClient.leave() = shutdown(0, 5, SECONDS)

/** For how long nobody need enter until those who wait count as forgotten. */
private const val DRAIN_NANOS = 5_000_000_000

private enum class Phase { WARMING, MEASURING, MEASURED, OVER }

/** Counts durations in buckets of 3 %. */
private class Waits {
    private val counts = IntArray(38 shl FINE)
    var longest = 0L
        private set

    fun add(nanos: Long) {
        counts[bucket(nanos)]++
        longest = maxOf(longest, nanos)
    }

    fun merge(other: Waits) {
        other.counts.forEachIndexed { i, n -> counts[i] += n }
        longest = maxOf(longest, other.longest)
    }

    /** Pairs of a duration and how often there was one like it. */
    fun pairs(): List<LongArray> = counts.indices.filter { counts[it] > 0 }.map { longArrayOf(middle(it), counts[it].toLong()) }

    private companion object {
        const val FINE = 5
        const val MOST = 42

        fun bucket(nanos: Long): Int {
            val shift = maxOf(63 - java.lang.Long.numberOfLeadingZeros(nanos) - FINE, 0)
            return minOf((shift shl FINE) + (nanos shr shift).toInt(), (38 shl FINE) - 1)
        }

        fun middle(i: Int): Long {
            val shift = maxOf((i shr FINE) - 1, 0)
            return ((i - (shift shl FINE)).toLong() shl shift) + (1L shl shift) / 2
        }
    }
}

private val word = MethodHandles.byteBufferViewVarHandle(LongArray::class.java, ByteOrder.nativeOrder())

/**
 * Sees whether a lock excludes, in three words of memory that other processes may share: the sections, whether
 * somebody is inside, and how many met somebody there.
 */
private class Witness(private val memory: ByteBuffer, private val at: Int) {
    val sections: Long get() = word.getVolatile(memory, at) as Long
    private val met: Long get() = word.getVolatile(memory, at + 16) as Long

    fun section(nanos: Long) {
        val n = sections
        if (word.getAndSet(memory, at + 8, 1L) as Long != 0L) word.getAndAdd(memory, at + 16, 1L)
        if (nanos > 0) NANOSECONDS.sleep(nanos)
        word.setVolatile(memory, at, n + 1) // not an addition: that would protect it
        word.setVolatile(memory, at + 8, 0L)
    }

    /** What is wrong unless there were [want] sections, each alone. */
    fun complaint(want: Long): String? =
        if (sections == want && met == 0L) null else "${want - sections} of $want increments lost, $met sections met another"

    companion object {
        private const val APART = 64 // a cache line

        fun alone(n: Int): List<Witness> {
            val memory = ByteBuffer.allocateDirect(n * APART + APART).alignedSlice(APART)
            return List(n) { Witness(memory, it * APART) }
        }

        fun inFile(path: String): Witness =
            RandomAccessFile(path, "rw").use { Witness(it.channel.map(READ_WRITE, 0, 4096), 0) }
    }
}

/** What a crowd got. Times are in nanoseconds. */
private class Outcome(
    @JvmField val served: List<Long>,
    @JvmField val within: Long,
    @JvmField val waits: List<LongArray>,
    @JvmField val longest: Long,
    @JvmField val entered: Long,
    @JvmField val asleep: Int,
    @JvmField val broken: String?, // of locks that other processes do not share
)

/** Threads that lock and unlock as fast as they can, all one lock, or with `own` one each. */
private class Crowd(call: Call) : AutoCloseable {
    @Volatile
    var phase = Phase.WARMING
    private val redisson = connect(call)
    private val own = call.long("own", 0) != 0L
    private val interruptibly = call.long("interruptibly", 0) != 0L
    private val section = call.long("section", 0)
    private val members: List<Member>

    init {
        val n = call.long("threads", 1).toInt()
        val witnesses = if (own) Witness.alone(n) else listOf(Witness.inFile(call.text("witness")))
        members = List(n) { i -> Member(if (own) "${call.name}:$i" else call.name, if (own) witnesses[i] else witnesses[0]) }
        members.forEach { it.thread.start() }
    }

    private inner class Member(name: String, val witness: Witness) {
        private val lock = redisson.getLock(name)
        val waits = Waits()
        var entered = 0L
        var served = 0L
        var within = 0L
        var failure: Throwable? = null
        val thread = thread(start = false, isDaemon = true) {
            try {
                work()
            } catch (e: Throwable) {
                failure = e
            }
        }

        private fun work() {
            while (true) {
                val began = phase
                val asked = System.nanoTime()
                if (began == Phase.OVER) return
                if (interruptibly) lock.lockInterruptibly() else lock.lock()
                val inside = System.nanoTime()
                witness.section(section)
                val out = System.nanoTime()
                lock.unlock()
                entered++
                val now = phase
                if (now == Phase.MEASURING) {
                    served++
                    within += out - inside
                }
                // A wait that outlasts the span counts, too.
                if (now == Phase.MEASURING || began == Phase.MEASURING) waits.add(inside - asked)
            }
        }
    }

    /** Lets everybody in once more, and out. */
    fun finish(): Outcome {
        phase = Phase.OVER
        var sections = -1L
        var since = System.nanoTime()
        while (members.any { it.thread.isAlive } && System.nanoTime() - since < DRAIN_NANOS) {
            members.find { it.thread.isAlive }?.thread?.join(50)
            val n = members.sumOf { it.entered } + members[0].witness.sections
            if (n != sections) since = System.nanoTime()
            sections = n
        }
        members.firstNotNullOfOrNull { it.failure }?.let { throw it }
        val waits = Waits()
        members.forEach { waits.merge(it.waits) }
        return Outcome(
            served = members.map { it.served },
            within = members.sumOf { it.within },
            waits = waits.pairs(),
            longest = waits.longest,
            entered = members.sumOf { it.entered },
            asleep = members.count { it.thread.isAlive },
            broken = if (own) members.firstNotNullOfOrNull { it.witness.complaint(it.entered) } else null,
        )
    }

    override fun close() = redisson.leave()
}

/** Two clients that hand one lock to each other. The one without it waits for it. */
private class Pair(call: Call) : AutoCloseable {
    private val clients = List(2) { connect(call) }
    private val locks = clients.map { it.getLock(call.name) }
    private val witness = Witness.inFile(call.text("witness"))
    private var entered = 0L // the lock protects it

    @Volatile
    private var left = 0L

    /** From before an unlock until the other's lock has returned, again and again for about [nanos], and once at least. */
    fun play(nanos: Long): Outcome {
        val before = entered
        val end = System.nanoTime() + nanos
        val mayAsk = listOf(Semaphore(1), Semaphore(0))
        val waits = Waits()
        val failures = mutableListOf<Throwable>()

        fun play(i: Int) {
            while (true) {
                mayAsk[i].acquire()
                val over = System.nanoTime() >= end && entered > maxOf(before, NEW) + 1
                if (!over) {
                    locks[i].lock()
                    val now = System.nanoTime()
                    if (entered > maxOf(before, NEW)) waits.add(now - left)
                }
                mayAsk[1 - i].release()
                if (over) return
                witness.section(REST + ThreadLocalRandom.current().nextLong(REST / 2))
                entered++
                left = System.nanoTime()
                locks[i].unlock()
            }
        }

        val players = List(2) { i ->
            thread(isDaemon = true) {
                try {
                    play(i)
                } catch (e: Throwable) {
                    synchronized(failures) { failures += e }
                    mayAsk[1 - i].release()
                }
            }
        }
        players.forEach { it.join(NANOSECONDS.toMillis(maxOf(end - System.nanoTime(), 0) + DRAIN_NANOS)) }
        synchronized(failures) { failures.firstOrNull()?.let { throw it } }
        return Outcome(
            served = listOf(entered - before), within = 0, waits = waits.pairs(), longest = waits.longest,
            entered = entered - before, asleep = players.count { it.isAlive }, broken = null,
        )
    }

    override fun close() = clients.forEach { it.leave() }

    private companion object {
        val REST = MICROSECONDS.toNanos(3000) // a waiter sleeps by then
        const val NEW = 3L // so many find connections to be made
    }
}
