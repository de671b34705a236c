package watchlock.interop

import org.redisson.Redisson
import org.redisson.api.RLock
import org.redisson.api.RedissonClient
import org.redisson.config.Config
import org.redisson.config.ShardedSubscriptionMode
import java.lang.reflect.Proxy
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.ExecutorService
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit

/** One Redisson client, and the threads that own its locks, by the names that requests give them. */
class Client private constructor(val redisson: RedissonClient) {
    private val threads = ConcurrentHashMap<String, Worker>()

    private class Worker(name: String) {
        lateinit var thread: Thread
        val queue: ExecutorService = Executors.newSingleThreadExecutor { run ->
            Thread(run, name).also { it.isDaemon = true; thread = it }
        }

        init {
            queue.submit {}.get()
        }
    }

    private fun worker(name: String): Worker = threads.computeIfAbsent(name, ::Worker)

    /** The thread called [name]: what it is given runs in order, always on that thread. */
    fun thread(name: String): ExecutorService = worker(name).queue

    fun threadId(name: String): Long = worker(name).thread.id

    fun interrupt(name: String) = worker(name).thread.interrupt()

    fun lock(name: String, fenced: Boolean): RLock =
        if (fenced) redisson.getFencedLock(name) else redisson.getLock(name)

    private fun close() {
        redisson.shutdown(0, 5, TimeUnit.SECONDS)
        threads.values.forEach { it.queue.shutdownNow() }
    }

    companion object {
        private val all = ConcurrentHashMap<String, Client>()

        fun named(name: String): Client = all[name] ?: throw IllegalArgumentException("no client $name")

        fun close(name: String) {
            all.remove(name)?.close()
        }

        fun open(call: Call): String {
            val client = Client(Redisson.create(config(call)))
            all.put(call.text("client"), client)?.close()
            return client.redisson.id
        }

        private fun config(call: Call): Config {
            val config = Config()
            config.lockWatchdogTimeout = call.long("watchdog", config.lockWatchdogTimeout)
            config.nettyThreads = 4
            config.threads = 4
            val nodes = call.texts("cluster")
            val server = if (nodes.isEmpty()) {
                config.useSingleServer().setAddress(call.text("address"))
                    .setConnectionMinimumIdleSize(2).setSubscriptionConnectionMinimumIdleSize(1)
            } else {
                config.useClusterServers().addNodeAddress(*nodes.toTypedArray())
                    .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1)
                    .setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(call.text("sharded", "auto").uppercase()))
            }
            val prefix = call.text("prefix")
            if (prefix.isNotEmpty()) mapNames(listOf(config, server), prefix)
            return config
        }
    }
}

/**
 * Sets a NameMapper that puts [prefix] before every name. Its setter is Config's from 4.0 on and the servers' before,
 * and its interface has moved to another package, so neither is named here.
 */
private fun mapNames(holders: List<Any>, prefix: String) {
    val (holder, setter) = holders.firstNotNullOf { holder ->
        holder.javaClass.methods.find { it.name == "setNameMapper" }?.let { holder to it }
    }
    val mapper = setter.parameterTypes.single()
    setter.invoke(holder, Proxy.newProxyInstance(mapper.classLoader, arrayOf(mapper)) { _, method, arguments ->
        val name = arguments?.firstOrNull() as? String
        when (method.name) {
            "map" -> name?.let { prefix + it }
            "unmap" -> name?.removePrefix(prefix)
            else -> null
        }
    })
}
